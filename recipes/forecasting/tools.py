"""The tools of forecasting. They see the two weeks before the forecast and nothing else."""

from __future__ import annotations

from agent_r1.errors import ConfigError
from agent_r1.tools import FunctionTool, ToolContext, ToolInputError

from .answer import AnswerError, read_combination
from .window import Window, show_forecast

STATE = "window"


def window_of(context: ToolContext) -> Window:
    """The window of the episode."""
    window = context.state.get(STATE)
    if not isinstance(window, Window):
        raise ConfigError("the tools of forecasting run in its environment: env.name=environment:ForecastEnv")
    return window


async def _statistics(context: ToolContext) -> str:
    """Level and spread of the last week."""
    return window_of(context).statistics()


async def _decompose(context: ToolContext) -> str:
    """Daily profile, levels of days, and the rest."""
    return window_of(context).decomposition()


async def _backtest(context: ToolContext) -> str:
    """Errors of all models on the last week, best first."""
    return window_of(context).backtest()


async def _forecast(models: str, context: ToolContext) -> str:
    """The forecast of one model or of a combination.

    Args:
        models: As in the answer, for example ar + seasonal.
    """
    try:
        combination = read_combination(models)
    except AnswerError as error:
        raise ToolInputError(str(error)) from error
    return show_forecast(combination.forecast(window_of(context).forecasts))


statistics = FunctionTool(_statistics, "statistics")
decompose = FunctionTool(_decompose, "decompose")
backtest = FunctionTool(_backtest, "backtest")
forecast = FunctionTool(_forecast, "forecast")
