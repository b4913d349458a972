// Threads take parts of a function's work from each other, without the interpreter.
//
// Python's workers wait in `serve`. A thread that has a job calls `share`: it takes parts too, and
// returns when all have ended. A thread that waits looks again and again for a while, since the
// next job often comes sooner than the system would wake it; then it sleeps.
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "common.h"

// Waking a thread takes 50 us on a virtual machine; between the kernels of a step pass 20 to 200.
#define PATIENCE_NS 200000

typedef void part_function(const void* arguments);

static struct {
    part_function* function;
    const char* arguments;
    ptrdiff_t size, parts;
    int helpers;
    int64_t owner;
} job;
static atomic_ptrdiff_t next_part;
// Jobs and calls so far; helpers inside of the job, which others may join while it is open.
static atomic_int jobs, calls, inside, is_open, is_taken, sleepers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

// What threads did in jobs, while somebody records: owner, thread, first part, begin, end.
#define ENTRY 5
#define ROOM 32768
static atomic_llong entries[ENTRY * ROOM];
static atomic_ptrdiff_t written;
static atomic_int recorders;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

#define WAIT_WHILE(condition)                                 \
    for (int64_t begin = now(); condition;) {                 \
        for (int i = 0; i < 64 && (condition); i++) relax();  \
        if (now() - begin < PATIENCE_NS) continue;            \
        pthread_mutex_lock(&lock);                            \
        sleepers++;                                           \
        while (condition) pthread_cond_wait(&changed, &lock); \
        sleepers--;                                           \
        pthread_mutex_unlock(&lock);                          \
    }

// What a sleeper waits for has changed: it counts itself before it looks, so nobody is missed.
static void tell(void) {
    if (!sleepers) return;
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void take_parts(void) {
    ptrdiff_t first = next_part++;
    if (first >= job.parts) return;
    int64_t begin = recorders ? now() : 0;
    for (ptrdiff_t part = first; part < job.parts; part = next_part++)
        job.function(job.arguments + part * job.size);
    ptrdiff_t place = begin ? written++ : ROOM;
    if (place >= ROOM) return;
    int64_t values[ENTRY] = {job.owner, (int64_t)pthread_self(), first, begin, now()};
    for (int k = 0; k < ENTRY; k++) entries[ENTRY * place + k] = values[k];
}

// Begin to record what threads do, or end it. The first who begins finds an empty record.
EXPORT void record(int begins) {
    pthread_mutex_lock(&lock);
    if (begins && !recorders) written = 0;
    recorders += begins ? 1 : -1;
    pthread_mutex_unlock(&lock);
}

// How many entries there are, the time, and the calling thread; then the entries, if there is room.
EXPORT void recorded(int64_t* out, ptrdiff_t room) {
    ptrdiff_t count = written < ROOM ? written : ROOM;
    out[0] = count, out[1] = now(), out[2] = (int64_t)pthread_self();
    for (ptrdiff_t k = 0; k < ENTRY * count && k + 3 < room; k++) out[k + 3] = entries[k];
}

// Call `function` with each of `parts` rows of arguments, `size` bytes apart. At most `helpers`
// workers help; none do while another thread's job is under way.
EXPORT void share(
    const void* function, const void* arguments, ptrdiff_t size, ptrdiff_t parts, int helpers) {
    if (atomic_exchange(&is_taken, 1)) {
        for (ptrdiff_t part = 0; part < parts; part++)
            ((part_function*)function)((const char*)arguments + part * size);
        return;
    }
    job.function = (part_function*)function, job.arguments = arguments;
    job.size = size, job.parts = parts, job.helpers = helpers;
    job.owner = (int64_t)pthread_self();
    next_part = 0;
    is_open = 1;
    jobs++;
    tell();
    take_parts();
    is_open = 0;
    WAIT_WHILE(inside > 0)
    is_taken = 0;
}

// Call functions one after the other: for each, where it is, how many arguments of 8 bytes it has,
// and these.
EXPORT void run_tasks(ptrdiff_t count, const int64_t* tasks) {
    for (ptrdiff_t k = 0; k < count; k++, tasks += 2 + tasks[1])
        ((part_function*)(intptr_t)tasks[0])(tasks + 2);
}

static void run_part(const void* part) {
    const int64_t* of = part;
    run_tasks(of[0], (const int64_t*)(intptr_t)of[1]);
}

// Run stages one after the other: for each, how many parts it has, and where the arguments of
// `run_tasks` are for each of them. `times`, unless it is NULL: when each ended.
EXPORT void run_stages(ptrdiff_t count, const int64_t* stages, int helpers, int64_t* times) {
    for (ptrdiff_t k = 0; k < count; k++, stages += 2) {
        const int64_t* parts = (const int64_t*)(intptr_t)stages[1];
        if (stages[0] == 1) run_part(parts);
        else share(run_part, parts, 2 * sizeof *parts, stages[0], helpers);
        if (times) times[k] = now();
    }
}

// Help with all jobs until Python has a task for its workers.
EXPORT void serve(void) {
    static _Thread_local int seen_jobs, seen_calls;
    while (seen_calls == calls) {
        WAIT_WHILE(seen_jobs == jobs && seen_calls == calls)
        seen_jobs = jobs;
        int before = inside++;
        if (is_open && before < job.helpers) take_parts();
        if (--inside == 0 && !is_open) tell();
    }
    seen_calls = calls;
}

// Have every thread return from `serve`.
EXPORT void call(void) {
    calls++;
    tell();
}

// Before all else in a process: a forked child finds what its parent's threads left.
EXPORT void prepare(void) {
    inside = is_open = is_taken = sleepers = recorders = 0;
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
