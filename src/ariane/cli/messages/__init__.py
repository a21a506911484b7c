"""Commands that send, print, resend and measure messages in bulk."""
