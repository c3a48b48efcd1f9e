"""Forecasting hourly series: a model learns to look at a window and to combine classical forecasts."""
