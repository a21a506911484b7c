"""Forms of requests and answers of Apache's dashboard: parameters, JSON and spreadsheets."""
