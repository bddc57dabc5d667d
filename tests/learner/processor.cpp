// Writes what cpp/processor.hpp says of instruction sets: of this processor, and of one made of three numbers, if given.
// tests/learner/test_processor.py compares it with what GCC says.
#include <cstdio>
#include <cstdlib>

#include "processor.hpp"

int main(int n, char **given) {
    const auto number = [&](int i) { return static_cast<unsigned>(std::strtoul(given[i], nullptr, 0)); };
    const bool is_made_up = n == 4;
    const bdpi::Processor processor =
        is_made_up ? bdpi::Processor{number(1), number(2), number(3)} : bdpi::this_processor();
    std::printf("%d %d", processor.has_avx2(), processor.has_avx512());
    if (is_made_up) return 0;
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    std::printf(" %d %d\n%x %x %x", avx2, avx512, processor.basic, processor.extended, processor.saved);
}
