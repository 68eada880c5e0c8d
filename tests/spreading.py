"""How the tests spread over processes: file by file, those that need the machine for themselves at the end.

What lies in a folder `alone` measures time or memory. It runs in one process, after everything else has ended.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ALONE = "alone"


def pytest_collection(session: pytest.Session) -> None:
    """What is imported and collected stays: looking for garbage among it takes a tenth of the collection's time."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Nor is it looked through again each time that a test has left garbage."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long first, so that no process is left with it; what needs the machine last."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (_alone(item.nodeid), item.path not in slow))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test measured goes from process to process as text: Decimals cannot."""
    report = yield
    report.user_properties = [(name, str(value)) for name, value in report.user_properties]
    return report


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> AloneLast:
    """Ours in place of xdist's own."""
    config.option.loadscopereorder = False
    return AloneLast(config, log)


class AloneLast(LoadFileScheduling):
    """A process has to know its next test before it runs the last one it has: it is told of an end, or of more."""

    def _split_scope(self, nodeid: str) -> str:
        return ALONE if _alone(nodeid) else super()._split_scope(nodeid)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        for each in self.nodes:
            self._reschedule(each)

    def _reschedule(self, node: WorkerController) -> None:
        if not self._only_alone_are_left():
            super()._reschedule(node)
        elif not node.shutting_down:
            others = [each for each in self.nodes if each is not node]
            if any(not each.shutting_down for each in others):
                node.shutdown()
            elif not any(self._pending_of(self.assigned_work[each]) for each in others):
                super()._assign_work_unit(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._only_alone_are_left():
            self._reschedule(node)
        else:
            super()._assign_work_unit(node)

    def _only_alone_are_left(self) -> bool:
        return list(self.workqueue) == [ALONE]


def _alone(nodeid: str) -> bool:
    return f"/{ALONE}/" in nodeid
