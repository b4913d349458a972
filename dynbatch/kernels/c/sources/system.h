// The system's header of vectors, which takes longest to read: it is compiled once for many sources.
#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
