// Starts Swagger UI: the policy of the page forbids the inline script of its own page.
"use strict";
// Swagger UI has a class for dark, and does not follow the system by itself.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const applyTheme = () => root.classList.toggle("dark-mode", root.dataset.theme === "dark" || (root.dataset.theme === "auto" && dark.matches));
dark.addEventListener("change", applyTheme);
applyTheme();

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
