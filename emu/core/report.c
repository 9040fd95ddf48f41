/* Findings. A finding is one sentence with kernel, block, thread and source line. It is written to
 * standard error, to the file LLMC_EMU_REPORT, and to emu_last_report(). The first finding of a
 * launch ends the launch; the context then fails as after a real fault. */
#include "emu.h"
#include "../cuda_api.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/program.h"

int emu_error;
static char last[2048];
static int n_report;

EXPORT const char *
emu_last_report(void)
{
	return last;
}

EXPORT int
emu_report_count(void)
{
	return n_report;
}

void
emu_report_clear(void)
{
	last[0] = 0;
}

static void
put(const char *text)
{
	const char *path = getenv("LLMC_EMU_REPORT");

	n_report++;
	snprintf(last, sizeof last, "%s", text);
	if (!emu_env("LLMC_EMU_QUIET", 0))
		fprintf(stderr, "emu: %s\n", text);
	if (path && *path) {
		int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
		if (fd >= 0) {
			dprintf(fd, "emu: %s\n", text);
			close(fd);
		}
	}
}

void
emu_note(const char *fmt, ...)
{
	char text[1536];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	put(text);
}

char *
emu_thread_name(const Thread *t)
{
	return emu_format("kernel '%s', block (%u,%u,%u), thread (%u,%u,%u)", t->blk->op->name,
	                  t->bid[0], t->bid[1], t->bid[2], t->tid[0], t->tid[1], t->tid[2]);
}

/* Describes the thread of an earlier access from its shadow cell. */
char *
emu_access_name(uint32_t buid, unsigned thread)
{
	EmuOp *op = op_of_buid(buid);

	if (!op)
		return emu_format("an earlier operation");
	if (op->kind != OP_KERNEL)
		return emu_format("%s", op->name);
	uint32_t i = buid - op->buid0;
	Dim g = op->grid, b = op->block;
	unsigned n = b.x * b.y * b.z;
	const char *same = emu_cur && emu_cur->blk && emu_cur->blk->op == op ? "" : op->name;
	if (thread >= n)
		return emu_format("%s%s%sblock (%u,%u,%u), several threads or an asynchronous copy",
		                  *same ? "kernel '" : "", same, *same ? "', " : "", i % g.x,
		                  i / g.x % g.y, i / (g.x * g.y));
	return emu_format("%s%s%sblock (%u,%u,%u), thread (%u,%u,%u)", *same ? "kernel '" : "",
	                  same, *same ? "', " : "", i % g.x, i / g.x % g.y, i / (g.x * g.y),
	                  thread % b.x, thread / b.x % b.y, thread / (b.x * b.y));
}

/* Returns the output of the symboliser for an address of an object. Starting the symboliser takes
 * 25 ms, so answers are cached for objects of the build cache, whose names are digests of their
 * contents. */
static void
symbolise(const char *object, const char *addr, Strbuf *out)
{
	/* llvm-addr2line reports inlined frames of -O1 builds, which GNU addr2line omits. */
	static const char *const names[] = { "llvm-addr2line", "addr2line" };
	const char *own = getenv("LLMC_EMU_CACHE");
	char program[4096], *file = realpath(object, NULL);
	Cache cache;
	int code;

	(void)cache_open(&cache, own && *own ? own : NULL, NULL);
	char *folder = cache_keeps(&cache) ? realpath(strbuf_str(&cache.dir), NULL) : NULL;
	const size_t n = folder ? strlen(folder) : 0;
	for (size_t i = 0; file && i < sizeof names / sizeof *names && !out->len; i++) {
		char *argv[] = { program, (char *)(uintptr_t)"-i", (char *)(uintptr_t)"-e",
			         file,    (char *)(uintptr_t)addr, NULL };
		if (!program_find(names[i], program, sizeof program))
			continue;
		const bool kept = n && !strncmp(file, folder, n) && file[n] == '/';
		if (kept ? !program_answer(&cache, argv, out)
		         : program_run(argv, 1024, out, &code, NULL) != LLMC_OK || code)
			strbuf_clear(
			    out); /* the output is an error message instead of a position */
	}
	cache_close(&cache);
	free(folder);
	free(file);
}

/* Returns the source line of an address in a kernel's object; "?" if unknown. */
char *
emu_place(const void *pc)
{
	Dl_info info;
	char addr[32], *place = NULL;
	Strbuf out = { 0 };

	if (!pc || !dladdr(pc, &info) || !info.dli_fname)
		return emu_format("?");
	snprintf(addr, sizeof addr, "0x%zx",
	         (size_t)((const char *)pc - (const char *)info.dli_fbase - 1));
	symbolise(info.dli_fname, addr, &out);
	/* Inlined frames come innermost first; lines of the device header are skipped. */
	for (char *line = out.len ? strtok(out.data, "\n") : NULL; line && !place;
	     line = strtok(NULL, "\n")) {
		char *slash = strrchr(line, '/'), *name = slash ? slash + 1 : line,
		     *disc = strstr(name, " (disc");
		if (disc)
			*disc = 0;
		if (strncmp(name, "emu_", 4) && strncmp(name, "??", 2))
			place = emu_format("%s", name);
	}
	strbuf_release(&out);
	return place ? place : emu_format("%s", info.dli_sname ? info.dli_sname : "?");
}

enum { SITE_FILES = 128, SITE_LINE_BITS = 22 };
static char *site_file[SITE_FILES];

uint32_t
emu_site(Site at)
{
	static const char *known[SITE_FILES];
	static uint32_t recent;

	if (known[recent] !=
	    at.file) { /* names are copied, since a module's strings are freed with it */
		for (recent = 0; recent < SITE_FILES - 1 && site_file[recent] &&
		                 strcmp(site_file[recent], at.file);
		     recent++)
			;
		if (!site_file[recent])
			site_file[recent] = emu_format("%s", at.file);
		known[recent] = at.file;
	}
	return recent << SITE_LINE_BITS | ((uint32_t)at.line & ((1u << SITE_LINE_BITS) - 1));
}

static char *
site_text(Site at)
{
	const char *slash = at.file ? strrchr(at.file, '/') : NULL;

	return emu_format("%s:%d", slash ? slash + 1 : at.file ? at.file : "?", at.line);
}

char *
emu_place_of(const EmuOp *op, uint32_t place)
{
	if (place >> 31)
		return site_text((Site){ site_file[(place & 0x7fffffff) >> SITE_LINE_BITS],
		                         (int)(place & ((1u << SITE_LINE_BITS) - 1)) });
	/* address nearest to the kernel's code that has these low bits */
	const uintptr_t near = (uintptr_t)op->fn->invoke;
	return emu_place(
	    (const void *)(near +
	                   (uintptr_t)(intptr_t)((int32_t)((place - (uint32_t)near) << 1) >> 1)));
}

static NORETURN void
die(int code, const char *place, const char *what)
{
	char *who = emu_cur && emu_cur->blk ? emu_thread_name(emu_cur) : emu_format("host");
	char *text = emu_format("%s, %s: %s", who, place, what);

	put(text);
	free(who);
	free(text);
	emu_error = code;
	if (!emu_cur || !emu_cur->blk)
		abort();
	block_abandon();
}

void
emu_die(int code, Site at, const char *fmt, ...)
{
	char what[1024], place[256];
	va_list ap;
	char *s = site_text(at);

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	snprintf(place, sizeof place, "%s", s);
	free(s);
	die(code, place, what);
}

void
emu_die_pc(int code, const void *pc, const char *fmt, ...)
{
	char what[1024], place[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	char *s = emu_place(pc);
	snprintf(place, sizeof place, "%s", s);
	free(s);
	die(code, place, what);
}

void
emu_die_at(int code, const void *pc, Site at, const char *fmt, ...)
{
	char what[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	if (pc)
		emu_die_pc(code, pc, "%s", what);
	emu_die(code, at, "%s", what);
}

/* Records a finding from outside the fibers, about a thread that will not run again. */
void
emu_finding(Thread *t, int code, Site at, const char *text)
{
	char *who = t ? emu_thread_name(t) : emu_format("host"), *place = site_text(at);
	char *all = emu_format("%s, %s: %s", who, place, text);

	put(all);
	free(who);
	free(place);
	free(all);
	emu_error = code;
}

/* ---- faults in fast mode: guard pages of memory and stacks, unmapped addresses ---- */

static struct sigaction before[4];
static const int which[4] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
static bool installed;

static void
on_fault(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;

	static bool inside;
	if (!emu_cur || !emu_cur->blk ||
	    inside) { /* the fault is not a kernel's, or happened while another is reported */
		for (int i = 0; i < 4; i++)
			if (which[i] == sig)
				sigaction(sig, &before[i], NULL);
		return; /* the instruction faults again, with the previous handler installed */
	}
	/* The handler returns into a function that does not return. That function makes the report,
	 * on the fiber's stack. */
	static const void *fault_pc;
	static const char *fault_addr;
	static int fault_sig;
	static bool no_address;
	fault_pc = (const char *)(uintptr_t)uc->uc_mcontext.gregs[REG_RIP] + 1;
	fault_addr = info->si_addr;
	fault_sig = sig;
	no_address = sig == SIGSEGV && info->si_code == SI_KERNEL;
	inside = true;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, sig);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	char *where = region_describe(fault_addr);
	inside = false;
	/* The alternate signal stack stays in use until block_abandon switches away; only the next
	 * fault reuses it. */
	if (fault_sig == SIGFPE)
		emu_die_pc(CUDA_ERROR_LAUNCH_FAILED, fault_pc,
		           "integer division by zero or overflow");
	if (fault_sig == SIGILL)
		emu_die_pc(CUDA_ERROR_ILLEGAL_INSTRUCTION, fault_pc,
		           "undefined behaviour, compiled to a trap");
	if (no_address) /* x86 reports misaligned vector instructions without an address */
		emu_die_pc(CUDA_ERROR_MISALIGNED_ADDRESS, fault_pc,
		           "misaligned vector access, or a non-canonical address");
	if (fault_addr >= emu_cur->stack && fault_addr < emu_cur->stack + 4096)
		emu_die_pc(CUDA_ERROR_LAUNCH_FAILED, fault_pc,
		           "the thread's stack of %zu bytes is too small (LLMC_EMU_STACK)",
		           emu_stack_bytes);
	emu_die_pc(CUDA_ERROR_ILLEGAL_ADDRESS, fault_pc, "out-of-bounds or illegal address %s",
	           where);
}

/* Installs the fault handlers and an alternate stack, before kernels run on a host thread. */
void
emu_signals(void)
{
	static __thread bool have_stack;
	struct sigaction sa = { .sa_flags = SA_SIGINFO | SA_ONSTACK };

	if (!have_stack) {
		stack_t ss = { .ss_size = 65536 };
		ss.ss_sp = mmap(NULL, ss.ss_size, PROT_READ | PROT_WRITE,
		                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		have_stack = ss.ss_sp != MAP_FAILED && !sigaltstack(&ss, NULL);
	}
	if (installed)
		return;
	installed = true;
	sa.sa_sigaction = on_fault;
	for (int i = 0; i < 4; i++)
		sigaction(which[i], &sa, &before[i]);
}
