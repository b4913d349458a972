// What stands in the simulator's runtime in place of its race checker where bytes are counted.
//
// Each access of a kernel to global memory adds its bytes to what its threads asked for. The first
// access of a launch to four bytes of memory, reading or writing, adds them to what the launch
// touched: the least that a device with an endless cache, emptied after each launch, would move.
#include "scheduler.h"

#include <cstdlib>
#include <link.h>
#include <unordered_map>

namespace shim {

// Of a page of memory: the last launch that read, and that wrote, each of its granules.
constexpr uintptr_t GRANULE = 4, PAGE = 1 << 16;
struct Page { uint32_t read[PAGE / GRANULE], written[PAGE / GRANULE]; };

static std::unordered_map<uintptr_t, Page*> pages;
static uintptr_t recent_number[64];
static Page* recent[64];
static uint32_t launch_number;
static bool watching;
static uint64_t counts[4];   // bytes asked for by reads, by writes; touched by reads, by writes
static uintptr_t image_low, image_high, runtime_low, runtime_high;

static int find_image(dl_phdr_info* info, size_t, void* code) {
    uintptr_t low = ~(uintptr_t)0, high = 0;
    for (int k = 0; k < info->dlpi_phnum; ++k) {
        const auto& segment = info->dlpi_phdr[k];
        if (segment.p_type != PT_LOAD) continue;
        const uintptr_t from = info->dlpi_addr + segment.p_vaddr, to = from + segment.p_memsz;
        if (from < low) low = from;
        if (to > high) high = to;
    }
    if ((uintptr_t)&find_image - low < high - low) runtime_low = low, runtime_high = high;
    if ((uintptr_t)code - low < high - low) image_low = low, image_high = high;
    return 0;
}

void check_begin(const void* code) {
    dl_iterate_phdr(find_image, (void*)code);
    for (uint64_t& count : counts) count = 0;
    ++launch_number;
    watching = true;
}

void check_end() { watching = false; }

static Page* page(uintptr_t number) {
    if (recent_number[number % 64] == number) return recent[number % 64];
    Page*& found = pages[number];
    if (!found) found = (Page*)calloc(1, sizeof(Page));
    recent_number[number % 64] = number;
    return recent[number % 64] = found;
}

static void access(void* address, size_t bytes, bool write) {
    const uintptr_t a = (uintptr_t)address;
    const uintptr_t dynamic = (uintptr_t)dynamic_shared;
    if (!watching || a - (uintptr_t)stacks < stacks_bytes || a - dynamic < SHARED_ROOM ||
        (a >= image_low && a < image_high) || (a >= runtime_low && a < runtime_high)) return;
    counts[write] += bytes;
    for (uintptr_t g = a & ~(GRANULE - 1); g < a + bytes; g += GRANULE) {
        Page* found = page(g / PAGE);
        uint32_t& last = (write ? found->written : found->read)[g % PAGE / GRANULE];
        counts[2 + write] += last == launch_number ? 0 : GRANULE;
        last = launch_number;
    }
}

void note_atomic(void* address, unsigned bytes, void*) {
    access(address, bytes, false);
    access(address, bytes, true);
}

}  // namespace shim

extern "C" {
void shim_set_buffers(const uint64_t*, int) {}
void shim_counts(uint64_t* out) { for (int i = 0; i < 4; ++i) out[i] = shim::counts[i]; }

#define HOOKS(N) \
    void __tsan_read##N(void* a) { shim::access(a, N, false); } \
    void __tsan_write##N(void* a) { shim::access(a, N, true); } \
    void __tsan_unaligned_read##N(void* a) { shim::access(a, N, false); } \
    void __tsan_unaligned_write##N(void* a) { shim::access(a, N, true); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* a, unsigned long n) { shim::access(a, n, false); }
void __tsan_write_range(void* a, unsigned long n) { shim::access(a, n, true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
