/* Callbacks that -fsanitize=thread and -fsanitize=alignment,bounds,... insert into kernels in
 * checking mode */
#include "emu.h"
#include "../cuda_api.h"

#include <string.h>

#define PC __builtin_return_address(0)
static const Site nowhere;

#define HOOK(ret, name, args)                                                                      \
	EXPORT ret name args;                                                                      \
	EXPORT ret name args

/* Checks an access to a local variable of the running thread against the registers that matrix
 * instructions in flight use. */
static COLD void
busy(const char *p, size_t n, bool write, const void *pc)
{
	const WgThread *w = emu_cur->wg;

	for (int i = 0; i < w->n_busy; i++)
		if (p < w->busy[i].hi && p + n > w->busy[i].lo && (write || w->busy[i].whole))
			emu_die_pc(CUDA_ERROR_LAUNCH_FAILED, pc,
			           "%s of registers that a matrix instruction in flight %s: wait "
			           "for it first",
			           write ? "write" : "read",
			           w->busy[i].whole ? "accumulates in" : "reads");
}

static inline void
access(const void *p, size_t n, bool write, const void *pc)
{
	if (likely(emu_cur && (size_t)((const char *)p - emu_cur->stack) < emu_stack_bytes)) {
		if (unlikely(emu_cur->wg && emu_cur->wg->n_busy))
			busy(p, n, write, pc);
		return;
	}
	if (write)
		shadow_write(p, n, pc, nowhere);
	else
		shadow_read(p, n, pc, nowhere);
}

static inline void
aligned(const void *p, size_t n, bool write, const void *pc)
{
	if (unlikely((uintptr_t)p & (n - 1)))
		emu_die_pc(CUDA_ERROR_MISALIGNED_ADDRESS, pc, "misaligned %s of %zu bytes",
		           write ? "write" : "read", n);
	access(p, n, write, pc);
}

#define SIZE(n)                                                                                    \
	HOOK(void, __tsan_read##n, (void *p))                                                      \
	{                                                                                          \
		aligned(p, n, false, PC);                                                          \
	}                                                                                          \
	HOOK(void, __tsan_write##n, (void *p))                                                     \
	{                                                                                          \
		aligned(p, n, true, PC);                                                           \
	}                                                                                          \
	HOOK(void, __tsan_read_write##n, (void *p))                                                \
	{                                                                                          \
		aligned(p, n, false, PC);                                                          \
		aligned(p, n, true, PC);                                                           \
	}                                                                                          \
	HOOK(void, __tsan_unaligned_read##n, (void *p))                                            \
	{                                                                                          \
		access(p, n, false, PC);                                                           \
	}                                                                                          \
	HOOK(void, __tsan_unaligned_write##n, (void *p))                                           \
	{                                                                                          \
		access(p, n, true, PC);                                                            \
	}                                                                                          \
	HOOK(void, __tsan_unaligned_read_write##n, (void *p))                                      \
	{                                                                                          \
		access(p, n, false, PC);                                                           \
		access(p, n, true, PC);                                                            \
	}                                                                                          \
	HOOK(void, __tsan_volatile_read##n, (void *p))                                             \
	{                                                                                          \
		block_yield(nowhere);                                                              \
		aligned(p, n, false, PC);                                                          \
	}                                                                                          \
	HOOK(void, __tsan_volatile_write##n, (void *p))                                            \
	{                                                                                          \
		aligned(p, n, true, PC);                                                           \
	}                                                                                          \
	HOOK(void, __tsan_unaligned_volatile_read##n, (void *p))                                   \
	{                                                                                          \
		access(p, n, false, PC);                                                           \
	}                                                                                          \
	HOOK(void, __tsan_unaligned_volatile_write##n, (void *p))                                  \
	{                                                                                          \
		access(p, n, true, PC);                                                            \
	}
/* Compiled into kernels with wgmma. The calls themselves do nothing, but because of them
 * ThreadSanitizer instruments locals. */
#define COVERED(n)                                                                                 \
	HOOK(void, __sanitizer_cov_load##n, (void *p))                                             \
	{                                                                                          \
		(void)p;                                                                           \
	}                                                                                          \
	HOOK(void, __sanitizer_cov_store##n, (void *p))                                            \
	{                                                                                          \
		(void)p;                                                                           \
	}
COVERED(1)
COVERED(2)
COVERED(4)
COVERED(8)
COVERED(16)
SIZE(1)
SIZE(2)
SIZE(4)
SIZE(8)
SIZE(16)

HOOK(void, __tsan_init, (void))
{
}
HOOK(void, __tsan_func_entry, (void *pc))
{
	(void)pc;
}
HOOK(void, __tsan_func_exit, (void))
{
}
HOOK(void, __tsan_vptr_update, (void **p, void *v))
{
	(void)p;
	(void)v;
}
HOOK(void, __tsan_vptr_read, (void **p))
{
	(void)p;
}
HOOK(void, __tsan_read_range, (void *p, size_t n))
{
	access(p, n, false, PC);
}
HOOK(void, __tsan_write_range, (void *p, size_t n))
{
	access(p, n, true, PC);
}

/* Returns whether the bytes are parameters of the running kernel. Each thread has a copy of the
 * parameters. */
static bool
is_parameter(const void *p, size_t n)
{
	const EmuOp *op = emu_cur && emu_cur->blk ? emu_cur->blk->op : NULL;

	return op && op->param_mem && (const char *)p >= op->param_mem &&
	       (const char *)p + n <= op->param_mem + op->bytes;
}

/* Called by the memcpy, memmove and memset that every kernel object contains. */
HOOK(void, emu_mem_copy, (void *d, const void *s, size_t n, const void *pc))
{
	if (emu_check && n) {
		if (!is_parameter(s, n))
			access(s, n, false, pc);
		access(d, n, true, pc);
	}
	memmove(d, s, n);
}

HOOK(void, emu_mem_set, (void *d, int c, size_t n, const void *pc))
{
	if (emu_check && n)
		access(d, n, true, pc);
	memset(d, c, n);
}

/* ---- undefined behaviour sanitizer: the data holds the source position ---- */
typedef struct {
	const char *file;
	uint32_t line, column;
} SanitizerLoc;

static Site
site(const void *data)
{
	const SanitizerLoc *s = data;
	return (Site){ s->file, (int)s->line };
}

HOOK(void, __ubsan_handle_type_mismatch_v1, (const void *data, const void *p))
{
	struct {
		SanitizerLoc at;
		const void *type;
		unsigned char log_align, kind;
	} d;

	memcpy(&d, data, sizeof d);
	if (!p)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, site(data), "access through a null pointer");
	emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, site(data),
	        "misaligned access: the type needs an address that is a multiple of %u",
	        1u << d.log_align);
}

HOOK(void, __ubsan_handle_out_of_bounds, (const void *data, uintptr_t index))
{
	emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, site(data), "out-of-bounds index %ld of an array",
	        (long)index);
}

HOOK(void, __ubsan_handle_divrem_overflow, (const void *data, uintptr_t a, uintptr_t b))
{
	(void)a, (void)b;
	emu_die(CUDA_ERROR_LAUNCH_FAILED, site(data), "integer division by zero or overflow");
}

HOOK(void, __ubsan_handle_shift_out_of_bounds, (const void *data, uintptr_t a, uintptr_t b))
{
	(void)a;
	emu_die(CUDA_ERROR_LAUNCH_FAILED, site(data), "shift by %lu bits is wider than the value",
	        (unsigned long)b);
}

#define OVERFLOW(name)                                                                             \
	HOOK(void, __ubsan_handle_##name##_overflow, (const void *data, uintptr_t a, uintptr_t b)) \
	{                                                                                          \
		(void)a, (void)b;                                                                  \
		emu_die(CUDA_ERROR_LAUNCH_FAILED, site(data),                                      \
		        "integer overflow: the result does not fit its signed type");              \
	}
OVERFLOW(add)
OVERFLOW(sub)
OVERFLOW(mul)
OVERFLOW(negate)
