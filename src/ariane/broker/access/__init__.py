"""Access control: what each request code of a broker needs."""
