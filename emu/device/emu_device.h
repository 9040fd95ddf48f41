/* The CUDA language and llmc's wrappers, implemented for the CPU. The emulated NVRTC includes this
 * file before every kernel. The PTX definitions of the wrappers are excluded by `#ifndef LLMC_EMU`.
 * README.md lists the names. */
#ifndef EMU_DEVICE_EMU_DEVICE_H
#define EMU_DEVICE_EMU_DEVICE_H

#include "emu_abi.h"
#include "warp_ops.h"

/* -O0: code that runs once or twice. Inlining functions at each call would take most of the compile
 * time. */
#if !defined(__OPTIMIZE__) && !defined(LLMC_EMU_CHECK)
#define always_inline unused
#endif
#define __global__ __attribute__((noinline, visibility("default"), used))
#define __device__
#define __host__
#define __constant__ static const
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict __restrict__
#define EMU_AT const char *emu_f = __builtin_FILE(), int emu_l = __builtin_LINE()
#define EMU_HERE emu_f, emu_l
#define EMU_FN static inline __attribute__((always_inline, unused))

typedef unsigned long emu_word;

/* ---- indices: read from the running thread by assembly, which the sanitizer does not instrument
 * ---- */
template <int OFFSET> EMU_FN unsigned
emu_field()
{
	emu_word r;
	asm("movq emu_cur@GOTPCREL(%%rip), %0\n\tmovq (%0), %0\n\tmovl %c1(%0), %k0"
	    : "=&r"(r)
	    : "i"(OFFSET));
	return (unsigned)r;
}

template <int OFFSET> struct emu_triple {
	static inline __attribute__((always_inline)) unsigned
	get_x()
	{
		return emu_field<OFFSET>();
	}
	static inline __attribute__((always_inline)) unsigned
	get_y()
	{
		return emu_field<OFFSET + 4>();
	}
	static inline __attribute__((always_inline)) unsigned
	get_z()
	{
		return emu_field<OFFSET + 8>();
	}
	__declspec(property(get = get_x)) unsigned x;
	__declspec(property(get = get_y)) unsigned y;
	__declspec(property(get = get_z)) unsigned z;
};
static const emu_triple<0> threadIdx = {};
static const emu_triple<12> blockIdx = {};
static const emu_triple<24> blockDim = {};
static const emu_triple<36> gridDim = {};
enum { warpSize = 32 };
EMU_FN unsigned
lane_id()
{
	return emu_field<48>();
}
EMU_FN unsigned
warp_id()
{
	return emu_field<56>();
}
EMU_FN int
opaque(int x)
{
	return x;
}

/* ---- vector types ---- */
struct alignas(2) uchar2 {
	unsigned char x, y;
};
struct alignas(4) uchar4 {
	unsigned char x, y, z, w;
};
struct alignas(4) char4 {
	signed char x, y, z, w;
};
#ifdef LLMC_EMU_CHECK
/* Vector types are copied field by field. The sanitizers then see each access, and the alignment
 * that the one instruction of a GPU would require. */
#define EMU_VECTOR2(T, E)                                                                          \
	struct alignas(2 * sizeof(E)) T {                                                          \
		E x, y;                                                                            \
		T() = default;                                                                     \
		constexpr T(E a, E b = 0) : x(a), y(b)                                             \
		{                                                                                  \
		}                                                                                  \
		EMU_COPY constexpr T(const T &o) : x(o.x), y(o.y)                                  \
		{                                                                                  \
		}                                                                                  \
		EMU_COPY T &                                                                       \
		operator=(const T &o)                                                              \
		{                                                                                  \
			x = o.x;                                                                   \
			y = o.y;                                                                   \
			return *this;                                                              \
		}                                                                                  \
	};
#define EMU_VECTOR4(T, E)                                                                          \
	struct alignas(4 * sizeof(E)) T {                                                          \
		E x, y, z, w;                                                                      \
		T() = default;                                                                     \
		constexpr T(E a, E b = 0, E c = 0, E d = 0) : x(a), y(b), z(c), w(d)               \
		{                                                                                  \
		}                                                                                  \
		EMU_COPY constexpr T(const T &o) : x(o.x), y(o.y), z(o.z), w(o.w)                  \
		{                                                                                  \
		}                                                                                  \
		EMU_COPY T &                                                                       \
		operator=(const T &o)                                                              \
		{                                                                                  \
			x = o.x;                                                                   \
			y = o.y;                                                                   \
			z = o.z;                                                                   \
			w = o.w;                                                                   \
			return *this;                                                              \
		}                                                                                  \
	};
#define EMU_COPY inline __attribute__((always_inline))
#else
#define EMU_VECTOR2(T, E)                                                                          \
	struct alignas(2 * sizeof(E)) T {                                                          \
		E x, y;                                                                            \
	};
#define EMU_VECTOR4(T, E)                                                                          \
	struct alignas(4 * sizeof(E)) T {                                                          \
		E x, y, z, w;                                                                      \
	};
#endif
EMU_VECTOR2(int2, int)
EMU_VECTOR4(int4, int)
EMU_VECTOR2(uint2, unsigned)
EMU_VECTOR4(uint4, unsigned)
EMU_VECTOR2(float2, float)
EMU_VECTOR4(float4, float)
EMU_VECTOR2(double2, double)
struct uint3 {
	unsigned x, y, z;
};
EMU_FN float2
make_float2(float x, float y)
{
	return float2{ x, y };
}
EMU_FN float4
make_float4(float x, float y, float z, float w)
{
	return float4{ x, y, z, w };
}
EMU_FN uint2
make_uint2(unsigned x, unsigned y)
{
	return uint2{ x, y };
}
EMU_FN uint4
make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
	return uint4{ x, y, z, w };
}
EMU_FN int2
make_int2(int x, int y)
{
	return int2{ x, y };
}
EMU_FN int4
make_int4(int x, int y, int z, int w)
{
	return int4{ x, y, z, w };
}

#include "emu_math.h"

/* ---- shared memory ---- */
template <class T> EMU_FN const char *
emu_type()
{
	return __PRETTY_FUNCTION__;
}
#define SHARED(T, name)                                                                            \
	static const char emu_site_##name = 0;                                                     \
	T &name = *(T *)emu_shared_static(&emu_site_##name, sizeof(T), alignof(T), #name,          \
	                                  emu_type<T>(), __FILE__, __LINE__)
#define SHARED_STORAGE(T, name)                                                                    \
	T &name = *(T *)emu_shared_arena(sizeof(T), #name, emu_type<T>(), __FILE__, __LINE__)
#define SHARED_BYTES(name)                                                                         \
	unsigned char *name = (unsigned char *)emu_shared_arena(0, #name, 0, __FILE__, __LINE__)

/* ---- vector accesses: one instruction each on a device ---- */
template <class T> EMU_FN T
emu_ld(const void *p, EMU_AT)
{
	T v;
#ifdef LLMC_EMU_CHECK
	emu_words w = emu_load(p, sizeof(T), EMU_HERE);
	__builtin_memcpy(&v, &w, sizeof(T));
#else
	if (__builtin_expect((emu_word)p & (sizeof(T) - 1), 0))
		emu_misaligned(sizeof(T), 0, EMU_HERE);
	__builtin_memcpy(&v, p, sizeof(T));
#endif
	return v;
}

template <class T> EMU_FN T
emu_ld_const(const void *p, EMU_AT)
{
#ifdef LLMC_EMU_CHECK
	T v;
	emu_words w = emu_load_const(p, sizeof(T), EMU_HERE);
	__builtin_memcpy(&v, &w, sizeof(T));
	return v;
#else
	return emu_ld<T>(p, EMU_HERE);
#endif
}

template <class T> EMU_FN void
emu_st(void *p, T v, EMU_AT)
{
#ifdef LLMC_EMU_CHECK
	emu_words w = { 0, 0 };
	__builtin_memcpy(&w, &v, sizeof(T));
	emu_store(p, w, sizeof(T), EMU_HERE);
#else
	if (__builtin_expect((emu_word)p & (sizeof(T) - 1), 0))
		emu_misaligned(sizeof(T), 1, EMU_HERE);
	__builtin_memcpy(p, &v, sizeof(T));
#endif
}
EMU_FN unsigned
ld_v1(const void *p, EMU_AT)
{
	return emu_ld<unsigned>(p, EMU_HERE);
}
EMU_FN uint2
ld_v2(const void *p, EMU_AT)
{
	return emu_ld<uint2>(p, EMU_HERE);
}
EMU_FN uint4
ld_v4(const void *p, EMU_AT)
{
	return emu_ld<uint4>(p, EMU_HERE);
}
EMU_FN uint4
ld_v4_stream(const void *p, EMU_AT)
{
	return emu_ld<uint4>(p, EMU_HERE);
}
EMU_FN uint4
ld_v4_const(const void *p, EMU_AT)
{
	return emu_ld_const<uint4>(p, EMU_HERE);
}
EMU_FN void
st_v1(void *p, unsigned v, EMU_AT)
{
	emu_st(p, v, EMU_HERE);
}
EMU_FN void
st_v2(void *p, uint2 v, EMU_AT)
{
	emu_st(p, v, EMU_HERE);
}
EMU_FN void
st_v4(void *p, uint4 v, EMU_AT)
{
	emu_st(p, v, EMU_HERE);
}
template <class T> EMU_FN T
__ldg(const T *p, EMU_AT)
{
	return emu_ld_const<T>(p, EMU_HERE);
}
EMU_FN void
prefetch_l2(const void *p, EMU_AT)
{
	emu_prefetch(p, EMU_HERE);
}

/* ---- block ---- */
EMU_FN void
__syncthreads(EMU_AT)
{
	emu_syncthreads(EMU_HERE);
}
EMU_FN int
__syncthreads_count(int p, EMU_AT)
{
	return (int)emu_syncthreads_count(p, EMU_HERE);
}
EMU_FN int
__syncthreads_or(int p, EMU_AT)
{
	return emu_syncthreads_count(p, EMU_HERE) != 0;
}
EMU_FN int
__syncthreads_and(int p, EMU_AT)
{
	return emu_syncthreads_count(!p, EMU_HERE) == 0;
}
EMU_FN void
bar_sync(int id, int n, EMU_AT)
{
	emu_named_sync(id, n, EMU_HERE);
}
EMU_FN void
bar_arrive(int id, int n, EMU_AT)
{
	emu_named_arrive(id, n, EMU_HERE);
}

/* ---- warp ---- */
template <class T> EMU_FN emu_word
emu_bits(T v)
{
	static_assert(sizeof(T) <= 8, "a warp moves at most 8 bytes per lane");
	emu_word b = 0;
	__builtin_memcpy(&b, &v, sizeof(T));
	return b;
}
template <class T> EMU_FN T
emu_unbits(emu_word b)
{
	T v;
	__builtin_memcpy(&v, &b, sizeof(T));
	return v;
}
#define EMU_SHFL(name, op)                                                                         \
	template <class T> EMU_FN T name(unsigned m, T v, int a, int w = 32, EMU_AT)               \
	{                                                                                          \
		return emu_unbits<T>(                                                              \
		    emu_warp(op, m, emu_bits(v), (emu_word)w << 32 | (unsigned)a, EMU_HERE));      \
	}
EMU_SHFL(__shfl_sync, EMU_W_SHFL)
EMU_SHFL(__shfl_xor_sync, EMU_W_SHFL_XOR)
EMU_SHFL(__shfl_up_sync, EMU_W_SHFL_UP)
EMU_SHFL(__shfl_down_sync, EMU_W_SHFL_DOWN)
EMU_FN void
__syncwarp(unsigned m = ~0u, EMU_AT)
{
	emu_warp(EMU_W_SYNC, m, 0, 0, EMU_HERE);
}
EMU_FN unsigned
__ballot_sync(unsigned m, int p, EMU_AT)
{
	return (unsigned)emu_warp(EMU_W_BALLOT, m, p != 0, 0, EMU_HERE);
}
EMU_FN int
__any_sync(unsigned m, int p, EMU_AT)
{
	return __ballot_sync(m, p, EMU_HERE) != 0;
}
EMU_FN int
__all_sync(unsigned m, int p, EMU_AT)
{
	return __ballot_sync(m, p, EMU_HERE) == m;
}
template <class T> EMU_FN unsigned
__match_any_sync(unsigned m, T v, EMU_AT)
{
	return (unsigned)emu_warp(EMU_W_MATCH_ANY, m, emu_bits(v), 0, EMU_HERE);
}
template <class T> EMU_FN unsigned
__match_all_sync(unsigned m, T v, int *p, EMU_AT)
{
	unsigned r = (unsigned)emu_warp(EMU_W_MATCH_ALL, m, emu_bits(v), 0, EMU_HERE);
	*p = r != 0;
	return r;
}
#if __CUDA_ARCH__ >= 800
EMU_FN unsigned
__reduce_add_sync(unsigned m, unsigned v, EMU_AT)
{
	return (unsigned)emu_warp(EMU_W_RED_ADD, m, v, 0, EMU_HERE);
}
EMU_FN int
__reduce_add_sync(unsigned m, int v, EMU_AT)
{
	return (int)emu_warp(EMU_W_RED_ADD, m, (unsigned)v, 0, EMU_HERE);
}
EMU_FN unsigned
__reduce_min_sync(unsigned m, unsigned v, EMU_AT)
{
	return (unsigned)emu_warp(EMU_W_RED_MIN, m, v, 0, EMU_HERE);
}
EMU_FN int
__reduce_min_sync(unsigned m, int v, EMU_AT)
{
	return (int)emu_warp(EMU_W_RED_MIN_S, m, (unsigned)v, 0, EMU_HERE);
}
EMU_FN unsigned
__reduce_max_sync(unsigned m, unsigned v, EMU_AT)
{
	return (unsigned)emu_warp(EMU_W_RED_MAX, m, v, 0, EMU_HERE);
}
EMU_FN int
__reduce_max_sync(unsigned m, int v, EMU_AT)
{
	return (int)emu_warp(EMU_W_RED_MAX_S, m, (unsigned)v, 0, EMU_HERE);
}
EMU_FN unsigned
__reduce_and_sync(unsigned m, unsigned v, EMU_AT)
{
	return (unsigned)emu_warp(EMU_W_RED_AND, m, v, 0, EMU_HERE);
}
EMU_FN unsigned
__reduce_or_sync(unsigned m, unsigned v, EMU_AT)
{
	return (unsigned)emu_warp(EMU_W_RED_OR, m, v, 0, EMU_HERE);
}
EMU_FN unsigned
__reduce_xor_sync(unsigned m, unsigned v, EMU_AT)
{
	return (unsigned)emu_warp(EMU_W_RED_XOR, m, v, 0, EMU_HERE);
}
#endif
EMU_FN float
warp_sum(float v, EMU_AT)
{
	return emu_unbits<float>(emu_warp(EMU_W_SUM_F32, ~0u, emu_bits(v), 0, EMU_HERE));
}
EMU_FN float
warp_max(float v, EMU_AT)
{
	return emu_unbits<float>(emu_warp(EMU_W_MAX_F32, ~0u, emu_bits(v), 0, EMU_HERE));
}
EMU_FN float
warp_min(float v, EMU_AT)
{
	return emu_unbits<float>(emu_warp(EMU_W_MIN_F32, ~0u, emu_bits(v), 0, EMU_HERE));
}
EMU_FN unsigned
__activemask(EMU_AT)
{
	return emu_activemask(EMU_HERE);
}
EMU_FN void
__trap(EMU_AT)
{
	emu_trap(EMU_HERE);
}
EMU_FN void
__nanosleep(unsigned, EMU_AT)
{
	emu_spin(EMU_HERE);
}

#include "emu_mma.h"
#include "emu_sync.h"
#include "emu_wgmma.h"

/* ---- entry point through which the emulated driver calls a kernel ---- */
template <int... I> struct emu_ints {
};
template <int N, int... I> struct emu_upto : emu_upto<N - 1, N - 1, I...> {
};
template <int... I> struct emu_upto<0, I...> {
	typedef emu_ints<I...> type;
};
template <class T> struct emu_value {
	typedef T type;
};
template <class T> struct emu_value<const T> {
	typedef T type;
};
template <auto *F> struct emu_call;
template <class... A, void (*F)(A...)> struct emu_call<F> {
	template <int... I> static inline __attribute__((always_inline)) void
	with(void **p, emu_ints<I...>)
	{
		F(*(typename emu_value<A>::type *)p[I]...);
	}
	static __attribute__((noinline, no_sanitize("thread"))) void
	run(void **p)
	{
		with(p, typename emu_upto<sizeof...(A)>::type());
	}
};
template <class... A> struct emu_sizes {
	unsigned v[1 + 2 * sizeof...(A)];
	constexpr emu_sizes() : v{}
	{
		unsigned i = 0, t[] = { (unsigned)sizeof...(A), (unsigned)sizeof(A)..., 0 },
		         a[] = { (unsigned)alignof(A)..., 0 };
		v[0] = t[0];
		for (i = 0; i < sizeof...(A); i++) {
			v[1 + 2 * i] = t[1 + i];
			v[2 + 2 * i] = a[i];
		}
	}
};
template <class... A> constexpr emu_sizes<A...>
emu_sizes_of(void (*)(A...))
{
	return emu_sizes<A...>();
}
#define EMU_OUT extern "C" __attribute__((visibility("default"), used))
#define EMU_EXPORT_BOUNDS(k, ...)                                                                  \
	EMU_OUT void (*emu_invoke_##k)(void **);                                                   \
	void (*emu_invoke_##k)(void **) = &emu_call<&k>::run;                                      \
	EMU_OUT decltype(emu_sizes_of(&k)) emu_param_##k;                                          \
	decltype(emu_sizes_of(&k)) emu_param_##k = emu_sizes_of(&k);                               \
	EMU_OUT int emu_bounds_##k[4];                                                             \
	int emu_bounds_##k[4] = { __VA_ARGS__ };
#define EMU_EXPORT(k) EMU_EXPORT_BOUNDS(k, 0)

#endif
