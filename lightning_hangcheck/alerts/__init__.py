"""Who hears of a hang: messages to people, a command of the user's, metrics.

`asked_for` holds what was asked for and the news, `messenger` is the program that delivers them;
`metrics_text` is for Prometheus.
"""
