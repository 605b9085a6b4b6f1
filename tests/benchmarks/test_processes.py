from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.gateway.processes import Cpu, choose_cores, cpu_of, machine, pinned, resident, tree


def test_target_and_instruments_never_share_a_core():
    for count in range(2, 9):
        cores = choose_cores(range(count))
        assert not cores.target & cores.instruments
        assert len(cores.two_workers) == 2


def test_two_workers_have_cores_of_their_own_where_there_are_four():
    cores = choose_cores([4, 5, 6, 7])
    assert cores.two_workers == {5, 6}
    assert not cores.two_workers & cores.instruments


def test_two_workers_share_with_the_instruments_where_there_are_fewer():
    assert choose_cores([0, 1]).two_workers == {0, 1}


def test_one_core_is_not_enough():
    with pytest.raises(ValueError, match="two cores"):
        choose_cores([3])


def test_what_is_started_while_pinned_stays_on_its_core_and_the_rest_is_as_before():
    before = os.sched_getaffinity(0)
    core = min(before)
    with pinned(frozenset({core})):
        shown = subprocess.check_output([sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"], text=True)
    assert shown.strip() == str({core})
    assert os.sched_getaffinity(0) == before


def test_a_tree_is_a_process_and_all_below_it():
    script = "import subprocess, sys; p = subprocess.Popen(['cat'], stdin=0); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        found = tree(parent.pid)
        memory = resident(parent.pid)
        parent.communicate()
    assert found == [parent.pid, grandchild]
    assert 0 < memory.largest_mb < memory.total_mb


def test_cpu_time_of_children_that_have_ended_stays_in_the_account():
    before = cpu_of(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    used = cpu_of(os.getpid()) - before
    assert used.total_s >= used.root_s >= 0.02


def test_a_process_that_is_gone_has_used_nothing():
    assert cpu_of(2**22 + 1) == Cpu(0.0, 0.0)


def test_the_whole_machine_has_worked_at_least_as_much_as_this_process():
    assert machine().busy_s > cpu_of(os.getpid()).root_s
