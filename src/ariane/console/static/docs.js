// Starts Swagger UI: the policy of the page forbids the inline script of its own page.
"use strict";
SwaggerUIBundle({
  url: document.querySelector("#swagger").dataset.openapi,
  dom_id: "#swagger",
  deepLinking: true,
  validatorUrl: null, // would be a request to another host
  requestInterceptor: (request) => {
    request.headers["X-CSRF-Token"] = document.querySelector('meta[name="csrf-token"]')?.content ?? "";
    return request;
  },
});
