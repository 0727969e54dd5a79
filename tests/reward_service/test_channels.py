"""Honest programs do not miss what the jail denies so that answers learn nothing of others."""

import asyncio
import platform
import shutil
import subprocess
from typing import Any

import pytest

from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.languages import languages
from services.reward_service.scoring import Scoring

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
ON_ONE_LOOP = pytest.mark.asyncio(loop_scope="session")

OF_ITSELF = """import os, resource, threading, time
time.process_time(), time.thread_time(), time.clock_gettime(time.CLOCK_BOOTTIME)
mine = time.pthread_getcpuclockid(threading.main_thread().ident)
assert time.clock_gettime(mine) > 0
assert len(os.sched_getaffinity(0)) >= 1 and os.getpgid(0) >= 0 and os.getsid(os.getpid()) >= 0
assert os.sched_getscheduler(0) == os.sched_getscheduler(os.getpid()) == os.SCHED_OTHER
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64
assert resource.prlimit(os.getpid(), resource.RLIMIT_CORE) == (0, 0)
thread = threading.Thread(target=time.sleep, args=(0,))
thread.start()
thread.join()
print(21)
"""

SORTS = """#include <bits/stdc++.h>
#include <pthread.h>
#include <sys/sysinfo.h>
#include <unistd.h>
using namespace std;
struct Row { int key, place; };
int by_key(const void* a, const void* b) { return ((Row*)a)->key - ((Row*)b)->key; }
void* about_itself(void*) {
    pthread_attr_t about;
    return reinterpret_cast<void*>(static_cast<long>(pthread_getattr_np(pthread_self(), &about)));
}
int main() {
    struct sysinfo facts, again;
    int asked = sysinfo(&facts);
    vector<char> more(1 << 26, 1);
    asked |= sysinfo(&again);
    if (asked || memcmp(&facts, &again, sizeof facts) || facts.sharedram || facts.procs) return 1;
    if (sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) != 1L << 30) return 2;
    vector<Row> rows(200000);
    for (int n = 0; n < (int)rows.size(); n++) rows[n] = {n * 7919 % 1000, n};
    qsort(rows.data(), rows.size(), sizeof(Row), by_key);
    for (size_t n = 1; n < rows.size(); n++)
        if (rows[n - 1].key == rows[n].key && rows[n - 1].place > rows[n].place) return 3;
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 20);
    long failed = pthread_create(&thread, &small, about_itself, nullptr);
    void* got = nullptr;
    if (failed || pthread_join(thread, &got) || got) return 4;
    if (std::thread::hardware_concurrency() < 1 || clock() < 0) return 5;
    cout << 21;
}
"""


async def graded(scoring: Scoring, code: str, **grader: Any) -> Score:
    tests = [{"stdin": "", "expected": "21"}]
    model = CodeGrader.model_validate({"kind": "code", "tests": tests, **grader})
    job = ScoreJob(job_id="j", completion=code, grader=model)
    (score,) = await asyncio.wait_for(scoring.score([job]), 120)
    return score


@ON_ONE_LOOP
async def test_a_program_may_ask_for_the_facts_of_itself(scoring: Scoring) -> None:
    score = await graded(scoring, OF_ITSELF)
    assert score.verdict is Verdict.ACCEPTED, score


@ON_ONE_LOOP
@needs_compiler
async def test_a_compiled_program_finds_the_same_memory_whatever_others_take(
    scoring: Scoring,
) -> None:
    """And `qsort`, which asks for its size, sorts as it does outside of the jail: stably."""
    score = await graded(scoring, f"```cpp\n{SORTS}\n```", language="cpp17")
    assert score.verdict is Verdict.ACCEPTED, score


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs g++")
@needs_compiler
@pytest.mark.parametrize("name", [name for name in languages() if name.startswith("cpp")])
def test_no_compiler_gives_the_linker_a_plugin_or_looks_for_link_time_code(name: str) -> None:
    """`-###` prints what the driver would run: the linker by way of collect2."""
    toolchain = languages()[name].toolchain
    assert toolchain is not None
    command = [toolchain.compiler, *toolchain.flags, "-###"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=True)
    (linking,) = [line for line in done.stderr.splitlines() if "collect2" in line.split()[0]]
    assert "-plugin" not in linking, linking
    assert "-fno-lto" in linking
