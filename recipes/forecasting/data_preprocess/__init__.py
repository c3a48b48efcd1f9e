"""Making the data of forecasting."""
