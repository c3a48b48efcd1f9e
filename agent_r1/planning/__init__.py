"""Planning: a recorded run, simulated on other numbers of engines and learners and with other settings. No torch."""

from agent_r1.planning.engine import Clock, EngineRates, SimulatedEngine
from agent_r1.planning.plan import Estimate, Plan, WhatIf, estimate_steps, make_plan, splits_of
from agent_r1.planning.rates import fit_engine, fit_update
from agent_r1.planning.record import RecordedRun, read_recorded_run, setup_of
from agent_r1.planning.report import draw_plan, plan_as_json, print_plan
from agent_r1.planning.simulation import Setup, SimulatedRun, StepTimes, simulate
from agent_r1.planning.workload import Call, RecordedEpisode, RecordedGroup, UpdateCost, Workload

__all__ = [
    "Call",
    "Clock",
    "EngineRates",
    "Estimate",
    "Plan",
    "RecordedEpisode",
    "RecordedGroup",
    "RecordedRun",
    "Setup",
    "SimulatedEngine",
    "SimulatedRun",
    "StepTimes",
    "UpdateCost",
    "WhatIf",
    "Workload",
    "draw_plan",
    "estimate_steps",
    "fit_engine",
    "fit_update",
    "make_plan",
    "plan_as_json",
    "print_plan",
    "read_recorded_run",
    "setup_of",
    "simulate",
    "splits_of",
]
