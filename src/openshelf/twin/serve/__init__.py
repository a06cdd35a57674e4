"""Serving in virtual time: engines by their own rules, replicas, pools, traces; and what a pool would bring."""

from openshelf.twin.serve.curve import Point, PoolCosts, curve, hit_rate
from openshelf.twin.serve.fitting import closed_form, fit_law, rows_of
from openshelf.twin.serve.law import ENGINES, StepLaw, shipped
from openshelf.twin.serve.model import ServedModel, find_model, model_names, model_of
from openshelf.twin.serve.predict import Predicted, predict
from openshelf.twin.serve.requests import Requests, drawn, drawn_of_clients, is_clients, made_of, read_requests
from openshelf.twin.serve.scenario import Machine, Scenario, assumed_of, machine_of, pool_curve, run_scenario
from openshelf.twin.serve.search import SEARCHED, Found, keeps, search
from openshelf.twin.serve.settings import Setting, read_settings
from openshelf.twin.serve.simulate import ROUTINGS, Engine, Pool, Served, serve
from openshelf.twin.serve.sweep import NO_DIFFERENCE, Outcome, difference, error_of, grid, sweep
from openshelf.twin.serve.times import times_of_kernels, times_of_law
from openshelf.twin.serve.work import Plan, Work, work_of

__all__ = [
    "ENGINES",
    "NO_DIFFERENCE",
    "ROUTINGS",
    "SEARCHED",
    "Engine",
    "Found",
    "Machine",
    "Outcome",
    "Plan",
    "Pool",
    "Point",
    "PoolCosts",
    "Predicted",
    "Requests",
    "Scenario",
    "Served",
    "ServedModel",
    "Setting",
    "StepLaw",
    "Work",
    "assumed_of",
    "closed_form",
    "curve",
    "difference",
    "drawn",
    "drawn_of_clients",
    "error_of",
    "find_model",
    "fit_law",
    "grid",
    "hit_rate",
    "machine_of",
    "is_clients",
    "keeps",
    "made_of",
    "model_names",
    "model_of",
    "pool_curve",
    "predict",
    "read_requests",
    "read_settings",
    "rows_of",
    "run_scenario",
    "search",
    "serve",
    "shipped",
    "sweep",
    "times_of_kernels",
    "times_of_law",
    "work_of",
]
