"""Threads of C share parts of jobs under the thread sanitizer, which tells of each race."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dynbatch.kernels.c.runtime import source

# Three threads have jobs at once, three serve, are called to Python now and then, and fall asleep.
# Some record what threads do, and read it. No thread adds up through another's parts: each sum must
# be right when `share` returns.
DRIVER = """
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
void share(const void*, const void*, ptrdiff_t, ptrdiff_t, int);
void serve(void);
void call(void);
void prepare(void);
void record(int);
void recorded(int64_t*, ptrdiff_t);
typedef struct { long* sum; long value; } addition;
static atomic_int is_over;
static atomic_long helped;
static _Thread_local int is_worker;
static void add(const void* arguments) {
    const addition* part = arguments;
    *part->sum += part->value;
    helped += is_worker;
}
static void* work(void* unused) {
    is_worker = 1;
    while (!is_over) serve();
    return NULL;
}
static void* have_jobs(void* seed) {
    unsigned state = *(unsigned*)seed;
    long sums[16] = {0}, expected[16] = {0};
    addition parts[16];
    for (int job = 0; job < 50000; job++) {
        int count = 1 + rand_r(&state) % 16;
        for (int i = 0; i < count; i++) {
            parts[i] = (addition){sums + i, job + i};
            expected[i] += job + i;
        }
        int records = rand_r(&state) % 4 == 0;
        if (records) record(1);
        share((const void*)add, parts, sizeof(addition), count, 1 + rand_r(&state) % 3);
        int64_t log[103];
        if (records) {
            recorded(log, 103);
            record(0);
        }
        for (int i = 0; i < count; i++)
            if (sums[i] != expected[i]) exit(1);
        if (rand_r(&state) % 100 == 0) call();
        if (rand_r(&state) % 1000 == 0) usleep(300);
    }
    return NULL;
}
int main(void) {
    pthread_t workers[3], others[3];
    unsigned seeds[3] = {1, 2, 3};
    prepare();
    for (int i = 0; i < 3; i++) pthread_create(workers + i, NULL, work, NULL);
    for (int i = 0; i < 3; i++) pthread_create(others + i, NULL, have_jobs, seeds + i);
    for (int i = 0; i < 3; i++) pthread_join(others[i], NULL);
    is_over = 1;
    call();
    for (int i = 0; i < 3; i++) pthread_join(workers[i], NULL);
    puts(helped ? "workers helped" : "workers did nothing");
}
"""


@pytest.mark.exhaustive
def test_threads_that_share_parts_do_not_race(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: the sanitizer cannot be tried")
    team = tmp_path / "team.c"
    team.write_text(source.join("team.c", source.read("team.c"), "float"))
    driver, program = tmp_path / "driver.c", tmp_path / "program"
    driver.write_text(DRIVER)
    flags = ["-O1", "-g", "-std=gnu11", "-fsanitize=thread", "-pthread"]
    command = ["gcc", *flags, str(driver), str(team), "-o", str(program), "-lm"]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no thread sanitizer")
    result = subprocess.run([program], capture_output=True, text=True, timeout=300)
    if "unexpected memory mapping" in result.stderr:
        pytest.skip("the thread sanitizer does not run on this system")
    assert (result.returncode, result.stdout, result.stderr) == (0, "workers helped\n", "")
