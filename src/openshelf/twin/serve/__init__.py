"""Serving in virtual time: engines by their own rules, replicas, pools, traces; and how a pool's size would change it."""

from openshelf.twin.serve.curve import Point, PoolCosts, curve, hit_rate
from openshelf.twin.serve.fitting import closed_form, fit_law, rows_of
from openshelf.twin.serve.law import ENGINES, StepLaw, shipped
from openshelf.twin.serve.model import ServedModel, find_model, model_names, model_of
from openshelf.twin.serve.predict import Predicted, predict
from openshelf.twin.serve.requests import Requests, drawn, made_of, read_requests
from openshelf.twin.serve.settings import Setting, read_settings
from openshelf.twin.serve.simulate import ROUTINGS, Engine, Pool, Served, serve
from openshelf.twin.serve.times import times_of_kernels, times_of_law
from openshelf.twin.serve.work import Plan, Work, work_of

__all__ = [
    "ENGINES",
    "ROUTINGS",
    "Engine",
    "Plan",
    "Pool",
    "Point",
    "PoolCosts",
    "Predicted",
    "Requests",
    "Served",
    "ServedModel",
    "Setting",
    "StepLaw",
    "Work",
    "closed_form",
    "curve",
    "drawn",
    "find_model",
    "fit_law",
    "hit_rate",
    "made_of",
    "model_names",
    "model_of",
    "predict",
    "read_requests",
    "read_settings",
    "rows_of",
    "serve",
    "shipped",
    "times_of_kernels",
    "times_of_law",
    "work_of",
]
