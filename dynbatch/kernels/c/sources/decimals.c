// Lines of words and numbers in decimals.
#include "common.h"

typedef unsigned char byte;
typedef byte bytes_vector __attribute__((vector_size(VECTOR_BYTES)));
typedef byte loose_bytes __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));

static const double POWERS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12,
    1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
#define MOST_POWER 22   // 10^22 is the last power of ten that a double holds exactly
#define MOST_DIGITS 19  // fewer than 2^64 in any case

INLINE int is_blank(byte c) { return c == ' ' || c == '\t'; }

static ptrdiff_t count_blanks(const byte* p, const byte* end) {
    ptrdiff_t found = 0;
    while (end - p >= VECTOR_BYTES) {
        bytes_vector sums = {0};  // a lane overflows after 255 vectors
        for (int k = 0; k < 255 && end - p >= VECTOR_BYTES; k++, p += VECTOR_BYTES) {
            bytes_vector v = *(const loose_bytes*)p;
            sums -= (bytes_vector)((v == ' ') | (v == '\t'));
        }
        for (ptrdiff_t k = 0; k < VECTOR_BYTES; k++) found += sums[k];
    }
    for (; p < end; p++) found += is_blank(*p);
    return found;
}

EXPORT void count_lines(ptrdiff_t size, const void* text, int64_t* count) {
    const byte *p = text, *end = p + size;
    int64_t lines = 0;
    for (; p < end; lines++) {
        const byte* next = memchr(p, '\n', (size_t)(end - p));
        p = next ? next + 1 : end;
    }
    *count = lines;
}

// Of each line: where it begins, where the word before its last `numbers` fields ends, where the
// line ends. A line of fewer fields has no word.
EXPORT void split_lines(
    ptrdiff_t size, const void* text, ptrdiff_t numbers, ptrdiff_t count, int64_t* spans) {
    const byte *first = text, *p = first, *end = first + size;
    for (ptrdiff_t line = 0; line < count; line++) {
        const byte* next = memchr(p, '\n', (size_t)(end - p));
        const byte* stop = next ? next : end;
        while (stop > p && (is_blank(stop[-1]) || stop[-1] == '\r')) stop--;
        const byte* word = p;
        ptrdiff_t blanks = count_blanks(p, stop);
        if (blanks == numbers)
            while (!is_blank(*word)) word++;
        else if (blanks > numbers)
            for (ptrdiff_t left = (word = stop, numbers); left; left -= is_blank(*word)) word--;
        spans[line] = p - first;
        spans[count + line] = word - first;
        spans[2 * count + line] = stop - first;
        p = next ? next + 1 : end;
    }
}

// Where digits end, which `number` takes in from the left; it means nothing beyond MOST_DIGITS.
//
// Eight at a time: bytes before the first that is not a digit move up, so that zeros stand before
// them, and neighbours are joined three times. Source: Lemire 2021, arXiv:2101.11408.
INLINE const byte* read_digits(const byte* p, const byte* end, uint64_t* number) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - p >= 8) {
        static const uint64_t tens[] = {
            1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
        uint64_t x;
        memcpy(&x, p, 8);
        x ^= 0x3030303030303030;
        uint64_t others = ((x + 0x7676767676767676) | x) & 0x8080808080808080;
        int n = others ? __builtin_ctzll(others) / 8 : 8;
        if (!n) return p;
        x <<= 64 - 8 * n;
        x = x * 10 + (x >> 8);
        x = (((x & 0x000000ff000000ff) * 0x000f424000000064) +
                (((x >> 16) & 0x000000ff000000ff) * 0x0000271000000001)) >>
            32;
        *number = *number * tens[n] + (uint32_t)x;
        p += n;
        if (n < 8) return p;
    }
#endif
    for (; p < end && (byte)(*p - '0') < 10; p++) *number = *number * 10 + (byte)(*p - '0');
    return p;
}

// The number that a field is, and where it ends; NULL where more is needed than a product or a
// quotient of exact doubles, and where it is not a number.
//
// Up to 2^53 digits are exact in a double, which the power then rounds once, as strtod. Beyond, the
// double may be off by two roundings: it counts where that cannot change the float.
INLINE const byte* read_number(const byte* p, const byte* end, float* out) {
    int is_negative = p < end && *p == '-';
    p += is_negative || (p < end && *p == '+');
    uint64_t digits = 0;
    const byte* begin = p;
    p = read_digits(p, end, &digits);
    ptrdiff_t known = p - begin, power = 0;
    if (p < end && *p == '.') {
        begin = ++p;
        p = read_digits(p, end, &digits);
        power = begin - p;
        known -= power;
    }
    if (!known || known > MOST_DIGITS) return NULL;
    if (p < end && (*p | 32) == 'e') {
        int is_small = ++p < end && *p == '-', exponent = 0;
        p += is_small || (p < end && *p == '+');
        begin = p;
        for (; p < end && (byte)(*p - '0') < 10 && p - begin < 4; p++)
            exponent = exponent * 10 + (*p - '0');
        if (p == begin) return NULL;
        power += is_small ? -exponent : exponent;
    }
    if ((p < end && !is_blank(*p)) || power > MOST_POWER || power < -MOST_POWER) return NULL;
    double x = power < 0 ? (double)digits / POWERS[-power] : (double)digits * POWERS[power];
    float low = (float)x, high = low;
    if (digits > (uint64_t)1 << 53)
        low = (float)(x * (1 - 0x1p-51)), high = (float)(x * (1 + 0x1p-51));
    if (low != high || !(low <= 3.4028234e38f)) return NULL;
    *out = is_negative ? -low : low;
    return p;
}

// Read the `width` numbers of lines first, …, last - 1 into rows of `out`; a row of -1 is left out.
// left[i]: whether line i has to be looked at again.
EXPORT void read_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t count, ptrdiff_t width,
    const void* text, const int64_t* spans, const int64_t* rows, float* out, int8_t* left) {
    for (ptrdiff_t i = first; i < last; i++) {
        left[i] = 0;
        if (rows[i] < 0) continue;
        const byte* p = (const byte*)text + spans[count + i];
        const byte* end = (const byte*)text + spans[2 * count + i];
        float* row = out + rows[i] * width;
        ptrdiff_t k = 0;
        for (; p < end && k < width; k++) {
            p = read_number(p + 1, end, row + k);
            if (!p) break;
        }
        left[i] = !p || p < end || k < width;
    }
}
