// The race and memory checker.
//
// Kernels are compiled with -fsanitize=thread, which puts a call to __tsan_readN or __tsan_writeN
// before every access, but they are linked with the hooks below instead of that sanitizer. Each
// access is looked up in a shadow map that remembers who touched the address, and when.
//
// "When" is (epoch, phase): barriers of the block and of the warp completed so far. Two accesses
// by different threads, not both atomic and at least one a write, are a race unless
//   - they are in one block and a block barrier lies between them, or
//   - they are in one warp and a __syncwarp of that warp lies between them; a shuffle orders nothing.
// So a missing barrier is found even where every order of threads happens to give the right numbers.
#include "scheduler.h"

#include <cstring>
#include <link.h>
#include <unordered_map>
#include <vector>

namespace shim {

struct Access {
    uint32_t block, thread, epoch, phase;
    uint8_t bytes;                 // which bytes of the granule, as a mask; 0: no access yet
    bool atomic;
    void* pc;
};

// What is remembered of a granule of four bytes. Three readers are enough to catch a later write in
// the patterns that occur: the last one, one of another warp, one of another lane of its warp.
struct Granule {
    Access write, read, read_other_warp, read_other_lane;
};

struct Range {
    uintptr_t low, high;
    bool has(uintptr_t a) const { return a >= low && a < high; }
};

// What is remembered of PAGE bytes in the present launch.
constexpr uintptr_t PAGE = 256;
struct Page {
    uint64_t launch = 0;           // in which it was touched last
    uintptr_t number;              // its first address / PAGE
    Range buffer;                  // device memory that an earlier access to it lay in
    Granule granules[PAGE / 4];
};

static std::unordered_map<uintptr_t, Page> pages;
static Page* recent[4096];             // pages by the last digits of their numbers
static uint64_t launches;
static std::vector<Range> buffers;     // live device memory
static Range kernel_image, kernel_bss, runtime_image;
static bool watching;

static int find_image(dl_phdr_info* info, size_t, void* code) {
    Range image{~(uintptr_t)0, 0}, bss{};
    for (int k = 0; k < info->dlpi_phnum; ++k) {
        const auto& segment = info->dlpi_phdr[k];
        if (segment.p_type != PT_LOAD) continue;
        const uintptr_t low = info->dlpi_addr + segment.p_vaddr, high = low + segment.p_memsz;
        if (low < image.low) image.low = low;
        if (high > image.high) image.high = high;
        if (segment.p_flags & PF_W) bss = {low + segment.p_filesz, high};
    }
    if (image.has((uintptr_t)&find_image)) runtime_image = image;
    if (image.has((uintptr_t)code)) kernel_image = image, kernel_bss = bss;
    return 0;
}

// Pages of earlier launches are used again rather than freed, as far as they are few.
void check_begin(const void* code) {
    ++launches;
    if (pages.size() > 4096) {
        pages = {};
        memset(recent, 0, sizeof recent);
    }
    if (!kernel_image.has((uintptr_t)code)) dl_iterate_phdr(find_image, (void*)code);
    watching = true;
}

void check_end() { watching = false; }

static Page& page_of(uintptr_t address) {
    const uintptr_t number = address / PAGE;
    Page*& place = recent[number % (sizeof recent / sizeof *recent)];
    if (place && place->number == number && place->launch == launches) return *place;
    place = &pages[number];
    if (place->launch != launches) {
        *place = Page{};
        place->launch = launches;
        place->number = number;
    }
    return *place;
}

static bool race(const Access& before, const Access& now, bool shared) {
    if (!(before.bytes & now.bytes) || (before.atomic && now.atomic)) return false;
    if (before.block != now.block) return !shared;   // blocks have shared memory of their own
    if (before.thread == now.thread || before.epoch != now.epoch) return false;
    return before.thread / WARP != now.thread / WARP || before.phase == now.phase;
}

static unsigned long offset(void* pc) { return (uintptr_t)pc - kernel_image.low; }

static void require_no_race(const char* what, const Access& before, const Access& now, bool shared) {
    if (!race(before, now, shared)) return;
    watching = false;
    fail("%s race in %s memory: block %u thread %u [pc 0x%lx] and block %u thread %u [pc 0x%lx]",
         what, shared ? "shared" : "global", before.block, before.thread, offset(before.pc),
         now.block, now.thread, offset(now.pc));
}

static void require_in_a_buffer(uintptr_t a, unsigned bytes, const char* what, void* pc) {
    Range& found = page_of(a).buffer;
    if (a >= found.low && a + bytes <= found.high) return;
    for (const Range& buffer : buffers)
        if (a >= buffer.low && a + bytes <= buffer.high) {
            found = buffer;
            return;
        }
    watching = false;
    fail("out-of-bounds %s of %u bytes [pc 0x%lx]", what, bytes, offset(pc));
}

static void remember_read(Granule& g, const Access& now) {
    if (g.read.bytes && g.read.thread != now.thread) {
        const bool same_warp =
            g.read.block == now.block && g.read.thread / WARP == now.thread / WARP;
        (same_warp ? g.read_other_lane : g.read_other_warp) = g.read;
    }
    g.read = now;
}

static void touch(Granule& g, const Access& now, bool write, bool shared) {
    const bool written = g.write.bytes && g.write.block == now.block;
    if (shared && !write && !written) {
        watching = false;
        fail("read of shared memory that this block never wrote [pc 0x%lx]", offset(now.pc));
    }
    require_no_race(write ? "write-write" : "write-read", g.write, now, shared);
    if (!write) return remember_read(g, now);
    require_no_race("read-write", g.read, now, shared);
    require_no_race("read-write", g.read_other_warp, now, shared);
    require_no_race("read-write", g.read_other_lane, now, shared);
    g.write = now;
}

static void access(void* address, size_t bytes, bool write, bool atomic, void* pc) {
    if (!watching) return;
    const uintptr_t a = (uintptr_t)address;
    if (Range{(uintptr_t)stacks, (uintptr_t)stacks + stacks_bytes}.has(a)) return;  // locals
    if (runtime_image.has(a)) return;                                               // threadIdx, …
    const uintptr_t dynamic = (uintptr_t)dynamic_shared;
    const bool shared = Range{dynamic, dynamic + SHARED_ROOM}.has(a) || kernel_bss.has(a);
    if (!shared && kernel_image.has(a)) return;                                     // constants
    if (!shared) require_in_a_buffer(a, bytes, write ? "write" : "read", pc);
    const unsigned block =
        block_index.x + grid_extent.x * (block_index.y + grid_extent.y * block_index.z);
    Access now{block, current->number, epoch, warps[current->number / WARP].phase, 0, atomic, pc};
    for (uintptr_t g = a & ~(uintptr_t)3; g < a + bytes; g += 4) {
        now.bytes = 15;
        if (g < a || g + 4 > a + bytes) {
            now.bytes = 0;
            for (unsigned i = 0; i < 4; ++i) now.bytes |= (g + i >= a && g + i < a + bytes) << i;
        }
        touch(page_of(g).granules[g % PAGE / 4], now, write, shared);
    }
}

void note_atomic(void* address, unsigned bytes, void* pc) { access(address, bytes, true, true, pc); }

}  // namespace shim

extern "C" {
void shim_set_buffers(const uint64_t* bounds, int count) {
    shim::buffers.clear();
    for (int i = 0; i < count; ++i) shim::buffers.push_back({bounds[2 * i], bounds[2 * i + 1]});
}

#define PC __builtin_return_address(0)
#define HOOKS(N) \
    void __tsan_read##N(void* a) { shim::access(a, N, false, false, PC); } \
    void __tsan_write##N(void* a) { shim::access(a, N, true, false, PC); } \
    void __tsan_unaligned_read##N(void* a) { shim::access(a, N, false, false, PC); } \
    void __tsan_unaligned_write##N(void* a) { shim::access(a, N, true, false, PC); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* a, unsigned long n) { shim::access(a, n, false, false, PC); }
void __tsan_write_range(void* a, unsigned long n) { shim::access(a, n, true, false, PC); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
