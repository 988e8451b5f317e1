"""Canonical task graphs and their streaming schedules on N processing elements."""

from __future__ import annotations

from tilewright.dataflow.baseline import nonstreaming_makespan
from tilewright.dataflow.blocks import Heuristic
from tilewright.dataflow.builder import TaskGraphBuilder
from tilewright.dataflow.depth import critical_path, streaming_depth
from tilewright.dataflow.graph import Edge, Kind, Node, Role, TaskGraph, Volume
from tilewright.dataflow.schedule import Discipline, TaskSchedule, schedule
from tilewright.dataflow.simulate import Simulation, simulate

__all__ = [
    "TaskGraphBuilder",
    "Discipline",
    "Edge",
    "Heuristic",
    "Kind",
    "Node",
    "Role",
    "Simulation",
    "TaskGraph",
    "TaskSchedule",
    "Volume",
    "critical_path",
    "nonstreaming_makespan",
    "schedule",
    "simulate",
    "streaming_depth",
]
