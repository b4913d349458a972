// The scheduler: fibers, block barriers, warp collectives, and the loop over blocks.
#include "scheduler.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <utility>
#include <vector>

#if !defined(__x86_64__)
#error "the fiber switch below is written for x86-64"
#endif

namespace shim {

uint3 thread_index, block_index;
dim3 block_extent, grid_extent;
Fiber* current;
Warp warps[MAX_THREADS / WARP];
unsigned char* dynamic_shared;
uint32_t epoch;
char* stacks;
size_t stacks_bytes;

static constexpr size_t STACK_BYTES = 64 * 1024, PAGE_BYTES = 4096;
static Fiber fibers[MAX_THREADS];
static std::vector<Copy> copies[MAX_THREADS];  // of each thread, until it waits for them
static unsigned running_order[MAX_THREADS], position;
static unsigned num_threads, num_alive, num_at_barrier;
static Place barrier_place;
static void* main_stack_pointer;
static void (*kernel_body)(void*);
static void* kernel_context;
static bool failed;
static char message[768];

// Saves the registers that a callee must keep, stores the stack pointer, and goes on where `to`
// was left. A system call (as in swapcontext) would cost twenty times as much.
extern "C" void shim_switch(void** save, void* to);
asm(R"(.text
.globl shim_switch
.hidden shim_switch
.type shim_switch,@function
shim_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi); movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size shim_switch,.-shim_switch
)");

static void switch_to(Fiber* next) {
    Fiber* previous = current;
    current = next;
    thread_index = next->index;
    shim_switch(&previous->stack_pointer, next->stack_pointer);
}

[[noreturn]] static void leave_block() {
    void* unused;
    shim_switch(&unused, main_stack_pointer);
    __builtin_unreachable();
}

void fail(const char* format, ...) {
    const int n = snprintf(message, sizeof message, "block (%u,%u,%u) thread (%u,%u,%u): ",
                           block_index.x, block_index.y, block_index.z, thread_index.x,
                           thread_index.y, thread_index.z);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message + n, sizeof message - n, format, arguments);
    va_end(arguments);
    failed = true;
    leave_block();
}

static bool same(Place a, Place b) {
    return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

// Lets the next runnable fiber go on; returns when the caller's turn comes again.
static void yield() {
    for (unsigned k = 0; k < num_threads; ++k) {
        position = position + 1 < num_threads ? position + 1 : 0;
        Fiber* next = &fibers[running_order[position]];
        if (next->state == State::RUNNABLE) {
            if (next != current) switch_to(next);
            return;
        }
    }
    if (!num_alive) leave_block();
    for (unsigned i = 0; i < num_threads; ++i) {
        if (fibers[i].state != State::WAITING) continue;
        thread_index = fibers[i].index;
        fail("deadlock: all %u live threads wait, this one at %s:%u", num_alive,
             fibers[i].place.file, fibers[i].place.line);
    }
}

void block_barrier(Place place) {
    if (num_at_barrier && !same(barrier_place, place))
        fail("__syncthreads divergence: this thread at %s:%u, another at %s:%u", place.file,
             place.line, barrier_place.file, barrier_place.line);
    if (num_alive != num_threads)
        fail("__syncthreads at %s:%u after %u threads of the block have returned", place.file,
             place.line, num_threads - num_alive);
    barrier_place = place;
    current->place = place;
    if (++num_at_barrier < num_alive) {
        current->state = State::WAITING;
        current->mask = 0;
        yield();
        return;
    }
    for (unsigned i = 0; i < num_threads; ++i)
        if (fibers[i].state == State::WAITING && !fibers[i].mask)
            fibers[i].state = State::RUNNABLE;
    num_at_barrier = 0;
    ++epoch;
}

// Whether all lanes of the mask wait in this same collective. A lane that waits under another mask
// is still busy in another group, and will come.
static bool complete(const Warp& warp, Fiber* lanes, uint32_t mask, Place place) {
    if ((warp.arrived & mask) != mask) return false;
    bool all = true;
    for (uint32_t rest = mask; all && rest; rest &= rest - 1) {
        const Fiber& other = lanes[__builtin_ctz(rest)];
        if (other.mask != mask) all = false;
        else if (!same(other.place, place))
            fail("warp divergence: this lane at %s:%u, lane %u at %s:%u, same mask %08x",
                 place.file, place.line, other.number % WARP, other.place.file, other.place.line,
                 mask);
    }
    return all;
}

static float of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// c += a b of a warp. Lane 4 g + t has, with h = 0, 1 (PTX ISA, "Matrix fragments for mma"):
//
//     m16n8k8, TF32       a[2 h], a[2 h + 1]   rows g, g + 8 of column 4 h + t
//                         b[h]                 row 4 h + t of column g
//     m16n8k16, bfloat16  a[2 h], a[2 h + 1]   rows g, g + 8 of columns 8 h + 2 t, 8 h + 2 t + 1
//                         b[h]                 rows 8 h + 2 t, 8 h + 2 t + 1 of column g
//     both                c                    columns 2 t, 2 t + 1 of row g, then of row g + 8
//
// Of TF32 the device reads the upper 19 bits.
static void multiply(Fiber* lanes) {
    float a[16][16] = {}, b[16][8] = {};
    for (unsigned lane = 0; lane < WARP; ++lane) {
        const Fragments& own = *(const Fragments*)lanes[lane].deposit;
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned h = 0; h < 2; ++h) {
            if (own.is_tf32) {
                for (unsigned r = 0; r < 2; ++r)
                    a[g + 8 * r][4 * h + t] = of_bits(own.a[2 * h + r] & 0xffffe000u);
                b[4 * h + t][g] = of_bits(own.b[h] & 0xffffe000u);
                continue;
            }
            for (unsigned e = 0; e < 2; ++e) {
                const unsigned k = 8 * h + 2 * t + e, up = 16 * (1 - e);
                for (unsigned r = 0; r < 2; ++r)
                    a[g + 8 * r][k] = of_bits(own.a[2 * h + r] << up & 0xffff0000u);
                b[k][g] = of_bits(own.b[h] << up & 0xffff0000u);
            }
        }
    }
    for (unsigned lane = 0; lane < WARP; ++lane) {
        float* c = ((const Fragments*)lanes[lane].deposit)->c;
        for (unsigned e = 0; e < 4; ++e) {
            double sum = c[e];
            for (unsigned k = 0; k < 16; ++k)
                sum += (double)a[lane / 4 + e / 2 * 8][k] * b[k][lane % 4 * 2 + e % 2];
            c[e] = (float)sum;
        }
    }
}

static void hand_out(Warp& warp, Fiber* lanes, uint32_t mask) {
    if (lanes[__builtin_ctz(mask)].collective == Collective::MATRIX) {
        if (~mask) fail("a product of a warp with lanes %08x only", mask);
        multiply(lanes);
    }
    uint64_t votes = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1)
        if (lanes[__builtin_ctz(rest)].deposit & 1) votes |= 1ull << __builtin_ctz(rest);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        Fiber& fiber = lanes[__builtin_ctz(rest)];
        fiber.result = fiber.collective == Collective::BALLOT ? votes
                     : fiber.source >= 0 ? lanes[fiber.source].deposit : fiber.deposit;
        fiber.state = State::RUNNABLE;
    }
    warp.arrived &= ~mask;
    // Shuffles and votes order no memory (CUDA's programming guide); __syncwarp does.
    if (lanes[__builtin_ctz(mask)].collective == Collective::SYNC) ++warp.phase;
}

uint64_t warp_collective(uint32_t mask, Place place, Collective collective, int source,
                         uint64_t deposit) {
    const unsigned lane = current->number % WARP, first = current->number - lane;
    Warp& warp = warps[first / WARP];
    const unsigned existing = num_threads - first;
    if (existing < WARP) mask &= (1u << existing) - 1;
    if (!(mask >> lane & 1))
        fail("%s:%u: calling lane %u is not in mask %08x", place.file, place.line, lane, mask);
    if (mask & ~warp.alive)
        fail("%s:%u: mask %08x names lanes that have returned (alive %08x)", place.file,
             place.line, mask, warp.alive);
    if (source >= (int)WARP) source = -1;
    if (source >= 0 && !(mask >> source & 1))
        fail("%s:%u: shuffle reads lane %d, which is not in mask %08x", place.file, place.line,
             source, mask);
    Fiber* me = current;
    me->place = place;
    me->mask = mask;
    me->collective = collective;
    me->source = source;
    me->deposit = deposit;
    warp.arrived |= 1u << lane;
    if (complete(warp, fibers + first, mask, place)) {
        hand_out(warp, fibers + first, mask);
    } else {
        me->state = State::WAITING;
        yield();
    }
    return me->result;
}

void begin_copy(Copy copy) { copies[current->number].push_back(copy); }

bool take_copy(Copy* copy) {
    std::vector<Copy>& own = copies[current->number];
    if (own.empty()) return false;
    *copy = own.back();
    own.pop_back();
    return true;
}

// Every fiber begins here, on a stack of its own, and never returns.
static void entry() {
    kernel_body(kernel_context);
    if (!copies[current->number].empty()) fail("thread returned before its copies had arrived");
    current->state = State::RETURNED;
    --num_alive;
    warps[current->number / WARP].alive &= ~(1u << current->number % WARP);
    if (num_at_barrier)
        fail("thread returned while %u others wait in __syncthreads (%s:%u)", num_at_barrier,
             barrier_place.file, barrier_place.line);
    if (!num_alive) leave_block();
    yield();
    __builtin_unreachable();
}

static void make_stacks() {
    stacks_bytes = MAX_THREADS * STACK_BYTES;
    stacks = (char*)mmap(nullptr, stacks_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
    for (unsigned i = 0; i < MAX_THREADS; ++i)  // an overflow faults instead of overwriting
        mprotect(stacks + i * STACK_BYTES, PAGE_BYTES, PROT_NONE);
    dynamic_shared = (unsigned char*)aligned_alloc(128, SHARED_ROOM);
}

static void prepare(unsigned number) {
    Fiber& fiber = fibers[number];
    const dim3& b = block_extent;
    fiber = Fiber{};
    fiber.number = number;
    copies[number].clear();
    fiber.index = {number % b.x, number / b.x % b.y, number / (b.x * b.y)};
    // What shim_switch pops: six registers, then the address to return to; above it a null return
    // address, which also keeps the stack aligned as at a call.
    void** top = (void**)(stacks + (number + 1) * STACK_BYTES);
    *--top = nullptr;
    *--top = (void*)&entry;
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber.stack_pointer = top;
    warps[number / WARP].alive |= 1u << number % WARP;
}

static void set_order(unsigned order, unsigned* seed) {
    for (unsigned i = 0; i < num_threads; ++i)
        running_order[i] = order == 1 ? num_threads - 1 - i : i;
    if (order < 2) return;
    for (unsigned i = num_threads - 1; i > 0; --i) {
        *seed = *seed * 1664525u + 1013904223u;
        std::swap(running_order[i], running_order[(*seed >> 8) % (i + 1)]);
    }
}

static void run_block(const Launch* launch, unsigned* seed) {
    num_alive = num_threads;
    num_at_barrier = 0;
    memset(warps, 0, sizeof warps);
    memset(dynamic_shared, 0xff, launch->shared_bytes);  // every float in it is NaN
    for (unsigned i = 0; i < num_threads; ++i) prepare(i);
    set_order(launch->order, seed);
    ++epoch;
    position = 0;
    current = &fibers[running_order[0]];
    thread_index = current->index;
    shim_switch(&main_stack_pointer, current->stack_pointer);
}

static const char* refuses(const Launch* launch) {
    const unsigned *g = launch->grid, *b = launch->block;
    const uint64_t threads = (uint64_t)b[0] * b[1] * b[2];
    if (!threads || threads > MAX_THREADS || b[2] > 64) return "a block has 1 to 1024 threads";
    if (!g[0] || !g[1] || !g[2] || g[0] > 0x7fffffffu || g[1] > 65535 || g[2] > 65535)
        return "a grid has 1 to 2147483647, 65535, 65535 blocks";
    if (launch->shared_bytes > MAX_SHARED) return "more dynamic shared memory than a block can have";
    return nullptr;
}

int run(const Launch* launch, const void* code, void (*body)(void*), void* context) {
    message[0] = 0;
    if (const char* why = refuses(launch)) {
        snprintf(message, sizeof message, "invalid launch configuration: %s", why);
        return 1;
    }
    const unsigned *g = launch->grid, *b = launch->block;
    grid_extent = {g[0], g[1], g[2]};
    block_extent = {b[0], b[1], b[2]};
    num_threads = b[0] * b[1] * b[2];
    kernel_body = body;
    kernel_context = context;
    failed = false;
    if (!stacks) make_stacks();
    if (launch->check) check_begin(code);
    unsigned seed = launch->order;
    for (unsigned z = 0; z < g[2] && !failed; ++z)
        for (unsigned y = 0; y < g[1] && !failed; ++y)
            for (unsigned x = 0; x < g[0] && !failed; ++x) {
                block_index = {x, y, z};
                if (launch->order == 1) block_index = {g[0] - 1 - x, g[1] - 1 - y, g[2] - 1 - z};
                run_block(launch, &seed);
            }
    check_end();
    return failed ? 2 : 0;
}

}  // namespace shim

extern "C" const char* shim_message() { return shim::message; }
