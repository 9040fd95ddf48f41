/* Targets that this processor runs, according to cpuid and to the registers that the kernel saves
 * on a context switch. Compiler builtins are not used: they are wrong on virtual machines. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "plan/target.h"
#include "runtime/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum {
	YMM = 6,
	ZMM = 0xe6,
	TILES = 3 << 17,                   /* bits of XCR0, the registers that the kernel saves */
	AMX = 1 << 22 | 1 << 24 | 1 << 25, /* leaf 7, edx: bf16, tiles, int8 */
	AVX_VNNI = 1 << 4,
	AVX512_BF16 = 1 << 5, /* leaf 7.1, eax */
	ARCH_REQ_XCOMP_PERM = 0x1023,
	TILE_DATA = 18, /* argument of arch_prctl */
};

static unsigned long long
saved_state(void)
{
	unsigned a, d;

	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
	return (unsigned long long)d << 32 | a;
}

static int
features(void)
{
	unsigned a, a1, b, d, c1, b7, c7, d7, cx;
	int f = CPU_AVX2;

	if (!__get_cpuid(1, &a, &b, &c1, &d))
		return 0;
	unsigned need = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C | bit_MOVBE | bit_POPCNT;
	if ((c1 & need) != need || (saved_state() & YMM) != YMM)
		return 0;
	if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) ||
	    !__get_cpuid(0x80000001, &a, &b, &cx, &d))
		return 0;
	need = bit_AVX2 | bit_BMI | bit_BMI2;
	if ((b7 & need) != need || !(cx & bit_LZCNT))
		return 0;
	if (!__get_cpuid_count(7, 1, &a1, &b, &cx, &d))
		a1 = 0;
	if (a1 & AVX_VNNI)
		f |= CPU_VNNI;
	need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512CD;
	if ((b7 & need) == need && (c7 & bit_AVX512VNNI) && (saved_state() & ZMM) == ZMM)
		f |= CPU_AVX512;
	if ((d7 & AMX) == AMX && (a1 & AVX512_BF16) && (saved_state() & TILES) == TILES)
		f |= CPU_AMX;
	return f;
}

/* Tile registers are 8 KB per thread. Linux grants them on request, once per process for all its
 * threads. It refuses if the signal stack of some thread is too small; sandboxes may not know the
 * call. */
static int
request_tiles(void)
{
#if defined(__linux__)
	return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 ? 0 : errno;
#else
	return ENOSYS;
#endif
}
#else
static int
features(void)
{
	return 0;
}

static int
request_tiles(void)
{
	return ENOSYS;
}
#endif

const char *
isa_best(void)
{
	const char *best = NULL;

	for (int i = 0; target_at(i); i++)
		if (isa_runs(target_at(i)->name))
			best = target_at(i)->name;
	return best;
}

bool
isa_runs(const char *target)
{
	return isa_lacks(target, NULL, 0) == 0;
}

int
isa_lacks(const char *target, char *why, size_t cap)
{
	static const char *const text[] = { "AVX2, FMA, F16C and BMI2", "AVX-512 with VNNI",
		                            "AVX-VNNI", "AMX tiles of int8 and bf16" };
	const Target *t = target_find(target);
	int lacks = !t || t->kind != TARGET_CPU ? -1 : t->needs & ~features();

	if (cap)
		why[0] = 0;
	if (lacks == -1)
		return lacks;
	for (size_t i = 0, at = 0; i < sizeof text / sizeof *text; i++)
		if (lacks & 1 << i && at < cap)
			at += (size_t)snprintf(why + at, cap - at, "%s%s",
			                       at ? ", " : "this processor has no ", text[i]);
	if (!lacks && t->needs & CPU_AMX) {
		int refused = request_tiles();
		if (!refused)
			return 0;
		if (cap)
			snprintf(why, cap, "the system refuses the tile registers of AMX: %s",
			         strerror(refused));
		return CPU_AMX;
	}
	return lacks;
}
