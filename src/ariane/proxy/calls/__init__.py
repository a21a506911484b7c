"""The calls of MessagingService, by group: each method receives a request and returns the reply, or raises CallRefused."""
