// A register of floats, one sample per lane, and the few operations the kernel needs.
//
// GCC's and Clang's vector extensions give arithmetic on any width; only the reciprocal estimates are intrinsics.
// Included by kernel.cpp alone, inside its anonymous namespace: each instruction set gets its own copy.

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecInt __attribute__((vector_size(kLanes * 4)));
typedef float VecUnaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const VecUnaligned*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<VecUnaligned*>(p) = v; }
inline Vec splat(float x) { return x - Vec{}; }

// A compiler may not turn a comparison into the one instruction for it, because of NaN and signed zeros.
#if defined(__AVX512F__)
inline Vec max(Vec a, Vec b) { return (Vec)_mm512_maskz_max_ps(0xFFFF, (__m512)a, (__m512)b); }
#elif defined(__AVX2__) && defined(__FMA__)
inline Vec max(Vec a, Vec b) { return (Vec)_mm256_max_ps((__m256)a, (__m256)b); }
#elif defined(__SSE2__)
inline Vec max(Vec a, Vec b) { return (Vec)_mm_max_ps((__m128)a, (__m128)b); }
#else
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
#endif

// 1/x by the hardware's estimate and one Newton step, exact to a few roundings. What a true division costs differs a
// lot between processors (on AMD's Zen 4 it would even be a little faster); this is quick on all of them.
inline Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
    const Vec y = (Vec)_mm512_maskz_rcp14_ps(0xFFFF, (__m512)x);
    return y * (2.0f - x * y);
#elif defined(__AVX2__) && defined(__FMA__)
    const Vec y = (Vec)_mm256_rcp_ps((__m256)x);
    return y * (2.0f - x * y);
#else
    return 1.0f / x;
#endif
}

// a / b, exact to a rounding or two: 1 / 1 is 1. An error of the estimate is seen in what is left over.
inline Vec quotient(Vec a, Vec b) {
#if defined(__AVX512F__)
    const Vec y = (Vec)_mm512_maskz_rcp14_ps(0xFFFF, (__m512)b);  // as good as the square root of the precision
#elif defined(__AVX2__) && defined(__FMA__)
    const Vec y = reciprocal(b);
#else
    return a / b;
#endif
#if defined(__AVX2__) && defined(__FMA__)
    const Vec q = a * y;
    return q + (a - b * q) * y;
#endif
}

// sqrt(x) for x >= 0. Below 1e-30 it returns less than the true root; both vanish beside Adam's epsilon of 1e-8.
inline Vec square_root(Vec x) {
#if defined(__AVX512F__)
    const Vec z = max(x, splat(1e-30f)), y = (Vec)_mm512_maskz_rsqrt14_ps(0xFFFF, (__m512)z);
    return x * (y * (1.5f - 0.5f * z * y * y));
#elif defined(__AVX2__) && defined(__FMA__)
    const Vec z = max(x, splat(1e-30f)), y = (Vec)_mm256_rsqrt_ps((__m256)z);
    return x * (y * (1.5f - 0.5f * z * y * y));
#else
    Vec y;
    for (int i = 0; i < kLanes; ++i) y[i] = __builtin_sqrtf(x[i]);
    return y;
#endif
}

// tanh(x) = m / (2 - m) for x >= 0, where m = 1 - e^(-2x). e^(-2x) = 2^n 2^r, and 2^r - 1 is a polynomial, so that small
// numbers lose nothing. Near 1, what is lost matters: Adam makes steps of the usual length out of gradients that are all
// too large, so those of saturated units, 1 - tanh^2, have to vanish. tests/learner/test_functions.py looks at both ends.
inline Vec hyperbolic_tangent(Vec x) {
    constexpr int32_t minus = int32_t(0x80000000);
    constexpr float rounding = 12582912.0f + 127.0f;  // added to n, it leaves the bits of 2^n's exponent at the end
    const Vec y = max((Vec)((VecInt)x | minus) * 2.88539008f, splat(-60.0f));
    const Vec shifted = y + rounding, r = y - (shifted - rounding);
    Vec p = 1.540351077e-04f * r + 1.339073526e-03f;
    p = p * r + 9.618237615e-03f;
    p = p * r + 5.550357327e-02f;
    p = p * r + 2.402264923e-01f;
    p = p * r + 6.931471825e-01f;
    const Vec scale = (Vec)((VecInt)shifted << 23);
    const Vec m = (1.0f - scale) - scale * (p * r);
    return (Vec)((VecInt)quotient(m, 2.0f - m) | ((VecInt)x & minus));
}

// exp(x) for x <= 0, by x = n ln 2 + r and a polynomial in r.
inline Vec exponential(Vec x) {
    x = max(x, splat(-87.0f));
    const Vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23 rounds to the nearest integer
    const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const VecInt exponent = (__builtin_convertvector(n, VecInt) + 127) << 23;
    return p * (Vec)exponent;
}

// Horizontal sums of up to kLanes vectors at once, for the price of a few.
//
// A vector holds groups of `width` lanes that still have to be summed (one group at first). Two vectors become one
// with twice as many groups of half the width: first halves of all groups plus second halves of all groups.
constexpr int half_of_group(int lane, int width, int second) {
    const int group = lane / (width / 2);  // groups of the first vector come before those of the second
    return group * width + second * (width / 2) + lane % (width / 2);
}
template <int width, int... lane>
inline Vec fold(Vec x, Vec y, std::integer_sequence<int, lane...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(x, y, half_of_group(lane, width, 0)...) +
           __builtin_shufflevector(x, y, half_of_group(lane, width, 1)...);
#else
    return __builtin_shuffle(x, y, VecInt{half_of_group(lane, width, 0)...}) +
           __builtin_shuffle(x, y, VecInt{half_of_group(lane, width, 1)...});
#endif
}
// `count` vectors become one vector of `count` groups.
template <int count>
inline Vec gather_groups(const Vec* v) {
    if constexpr (count == 1) {
        return v[0];
    } else {
        return fold<2 * kLanes / count>(gather_groups<count / 2>(v), gather_groups<count / 2>(v + count / 2),
                                        std::make_integer_sequence<int, kLanes>{});
    }
}
template <int width>
inline Vec finish_groups(Vec x) {
    if constexpr (width == 1) {
        return x;
    } else {
        return finish_groups<width / 2>(fold<width>(x, x, std::make_integer_sequence<int, kLanes>{}));
    }
}
// Lanes 0 .. count-1 of the result are the sums of v[0 .. count-1]; `v` is read up to the next power of two.
template <int count>
inline Vec horizontal_sums(const Vec* v) {
    constexpr int groups = count > 8 ? 16 : count > 4 ? 8 : count > 2 ? 4 : count;
    static_assert(groups <= kLanes);
    return finish_groups<kLanes / groups>(gather_groups<groups>(v));
}

// kLanes vectors become the columns of the square that they are.
template <int half, int... lane>
inline void exchange(Vec& x, Vec& y, std::integer_sequence<int, lane...>) {
    const Vec a = x, b = y;
#if defined(__clang__) || __GNUC__ >= 12
    x = __builtin_shufflevector(a, b, (lane & half ? kLanes + lane - half : lane)...);
    y = __builtin_shufflevector(a, b, (lane & half ? kLanes + lane : lane + half)...);
#else
    x = __builtin_shuffle(a, b, VecInt{(lane & half ? kLanes + lane - half : lane)...});
    y = __builtin_shuffle(a, b, VecInt{(lane & half ? kLanes + lane : lane + half)...});
#endif
}
template <int half = kLanes / 2>
inline void transpose(Vec* v) {
    BDPI_UNROLL for (int i = 0; i < kLanes; ++i)
        if (!(i & half)) exchange<half>(v[i], v[i + half], std::make_integer_sequence<int, kLanes>{});
    if constexpr (half > 1) transpose<half / 2>(v);
}

// Rarely visited states leave moments that decay into denormal numbers, which many processors handle far
// slower; they are far below anything that matters, so they count as zero here.
class FlushDenormals {
  public:
#if defined(__SSE2__)
    FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#elif defined(__aarch64__)
    FlushDenormals() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(saved_ | (uint64_t{1} << 24)));
    }
    ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

  private:
    uint64_t saved_;
#endif
};
