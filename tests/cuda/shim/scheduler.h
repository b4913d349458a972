// What the kernels' header, the scheduler and the checker share.
//
// A launch runs block after block. Inside a block every CUDA thread is a fiber with a stack of its
// own, all on one thread of the operating system; a fiber runs until it reaches a barrier or a warp
// collective, so a run is deterministic. `Launch::order` chooses which fiber goes first.
#pragma once
#include <cstddef>
#include <cstdint>

struct dim3 { unsigned x, y, z; };
struct uint3 { unsigned x, y, z; };

namespace shim {

constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned WARP = 32;
constexpr size_t SHARED_ROOM = 256 * 1024;     // at least the largest dynamic shared memory
constexpr unsigned MAX_SHARED = 232448;        // 227 KiB: what sm_90 lets a block have

struct Launch {                                // mirrored by ctypes in simulator.py
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    unsigned order;                            // 0 forward, 1 backward, else the seed of a shuffle
    unsigned check;                            // whether the race and memory checker watches
};

struct Place { const char* file; unsigned line; };

enum class State : uint8_t { RUNNABLE, WAITING, RETURNED };
enum class Collective : uint8_t { SYNC, SHUFFLE, BALLOT, MATRIX };

// What a lane hands to a product of its warp: its part of c += a b, in the registers of PTX.
struct Fragments {
    float* c;
    uint32_t a[4], b[2];
    bool is_tf32;                              // 16 x 8 by 8 x 8; else bfloat16, 16 x 16 by 16 x 8
};

// Four floats on their way to shared memory.
struct Copy {
    float* to;
    const float* from;
};

struct Fiber {
    void* stack_pointer;
    uint3 index;                               // threadIdx
    unsigned number;                           // its linear form
    State state;
    // Where and with what it waits. mask == 0: in __syncthreads; else in a warp collective.
    Place place;
    uint32_t mask;
    Collective collective;
    int source;                                // lane to read from, -1: its own
    uint64_t deposit, result;
};

struct Warp {
    uint32_t arrived;                          // lanes waiting in a collective
    uint32_t alive;                            // lanes that have not returned
    unsigned phase;                            // __syncwarps completed so far
};

extern uint3 thread_index, block_index;
extern dim3 block_extent, grid_extent;
extern Fiber* current;
extern Warp warps[MAX_THREADS / WARP];
extern unsigned char* dynamic_shared;
extern uint32_t epoch;                         // block barriers completed so far, all blocks counted
extern char* stacks;
extern size_t stacks_bytes;

int run(const Launch* launch, const void* code, void (*body)(void*), void* context);
void block_barrier(Place place);
uint64_t warp_collective(uint32_t mask, Place place, Collective collective, int source,
                         uint64_t deposit);
void begin_copy(Copy copy);
bool take_copy(Copy* copy);                    // of this thread; false: there is none
[[noreturn]] void fail(const char* format, ...);

void check_begin(const void* code);
void check_end();
void note_atomic(void* address, unsigned bytes, void* pc);

}  // namespace shim
