"""The commands of `mqadmin`, by what they administer."""
