/* Targets that this processor runs. x86-64: according to cpuid and to the registers that the kernel
 * saves on a context switch; compiler builtins are not used, because they are wrong on virtual
 * machines. AArch64: according to the kernel's AT_HWCAP. */
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
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

static int
features(void)
{
	const unsigned long a = getauxval(AT_HWCAP), b = getauxval(AT_HWCAP2);
	const unsigned long neon = HWCAP_ASIMD | HWCAP_ASIMDDP | HWCAP_ASIMDHP | HWCAP_FPHP,
	                    i8mm = HWCAP2_I8MM | HWCAP2_BF16;

	return ((a & neon) == neon ? CPU_NEON : 0) | ((b & i8mm) == i8mm ? CPU_I8MM : 0);
}
#else
static int
features(void)
{
	return 0;
}
#endif

static int
request_tiles(void)
{
	return ENOSYS;
}
#endif

/* Text of each CPU_ flag, in their order */
static const char *const feature_text[] = {
	"AVX2, FMA, F16C and BMI2",
	"AVX-512 with VNNI",
	"AVX-VNNI",
	"AMX tiles of int8 and bf16",
	"NEON dot products with fp16",
	"int8 matrix multiply with bf16",
};
enum { N_FEATURES = sizeof feature_text / sizeof *feature_text };

int
isa_features(char *buf, size_t cap, bool present)
{
#if defined(__x86_64__)
	const int native = CPU_X86;
#elif defined(__aarch64__)
	const int native = CPU_ARM;
#else
	const int native = 0;
#endif
	const int here = features();
	int at = 0;

	if (cap)
		buf[0] = 0;
	for (int i = 0; i < N_FEATURES; i++)
		if (native & 1 << i && !(here & 1 << i) == !present && (size_t)at < cap)
			at += snprintf(buf + at, cap - (size_t)at, "%s%s", at ? "; " : "",
			               feature_text[i]);
	return at;
}

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
	const Target *t = target_find(target);
	int lacks = !t || t->kind != TARGET_CPU ? -1 : t->needs & ~features();

	if (cap)
		why[0] = 0;
	if (lacks == -1)
		return lacks;
	if (lacks && cap && target_is_foreign(t)) {
		snprintf(why, cap, "it runs on %s only",
		         t->needs & CPU_ARM ? "64-bit Arm processors" : "x86-64 processors");
		return lacks;
	}
	for (size_t i = 0, at = 0; i < N_FEATURES; i++)
		if (lacks & 1 << i && at < cap)
			at +=
			    (size_t)snprintf(why + at, cap - at, "%s%s",
			                     at ? ", " : "this processor has no ", feature_text[i]);
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
