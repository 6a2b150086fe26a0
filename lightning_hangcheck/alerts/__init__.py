"""Who hears of a hang: `messenger` tells people and commands, `metrics_text` is for Prometheus."""
