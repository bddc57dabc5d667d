// Which instruction sets the processor has and the operating system lets programs use. __builtin_cpu_supports says the
// same, by a part of the compiler's library that not every compiler brings (zig's has none).
#pragma once

#include <cpuid.h>

namespace bdpi {

struct Processor {
    unsigned basic, extended;  // features: ECX of cpuid's leaf 1, EBX of leaf 7
    unsigned saved;            // the registers that the system saves when it switches programs: XCR0

    bool has_avx2() const {
        const unsigned fma = 1u << 12, avx = 1u << 28, avx2 = 1u << 5, registers = 0x06;
        return has(basic, fma | avx) && has(extended, avx2) && has(saved, registers);
    }
    // With all of F, DQ, BW and VL. Systems may save the registers of AVX2 only.
    bool has_avx512() const {
        const unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, registers = 0xe6;
        return has_avx2() && has(extended, f | dq | bw | vl) && has(saved, registers);
    }

  private:
    static bool has(unsigned value, unsigned bits) { return (value & bits) == bits; }
};

inline Processor this_processor() {
    Processor found{};
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) found.basic = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) found.extended = b;
    const unsigned osxsave = 1u << 27;  // without it, there is no xgetbv
    if (found.basic & osxsave) __asm__("xgetbv" : "=a"(found.saved), "=d"(d) : "c"(0));
    return found;
}

}  // namespace bdpi
