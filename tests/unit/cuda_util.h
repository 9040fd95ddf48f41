/* The emulated GPU for tests. It is found next to the test program, and opened like a driver. */
#ifndef TESTS_UNIT_CUDA_UTIL_H
#define TESTS_UNIT_CUDA_UTIL_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api.h"
#include "base/file.h"

static long (*emu_count)(const char *name);
static void (*emu_count_reset)(void);
static void (*emu_fail)(const char *name, long n, int code);
static void (*emu_lose)(long n, int code);
static const char *(*emu_failed)(void);
static long (*emu_leaks)(void);
static int (*emu_report_count)(void);
static const char *(*emu_last_report)(void);
static void (*emu_graph)(long *kernels, long *asked, long *edges, long *changes);

/* Look for BUILD/emu from BUILD/unit/test_x; false: the emulator is not built */
static inline bool
emulator(char dir[4096])
{
	char self[3800] = "", path[4200];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	for (int i = 0; n > 0 && i < 2; i++) {
		char *slash = strrchr(self, '/');
		if (slash)
			*slash = 0;
	}
	snprintf(dir, 4096, "%s/emu", self);
	snprintf(path, sizeof path, "%s/libcuda.so.1", dir);
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return false;
	*(void **)&emu_count = dlsym(lib, "emu_count");
	*(void **)&emu_count_reset = dlsym(lib, "emu_count_reset");
	*(void **)&emu_fail = dlsym(lib, "emu_fail");
	*(void **)&emu_lose = dlsym(lib, "emu_lose");
	*(void **)&emu_failed = dlsym(lib, "emu_failed");
	*(void **)&emu_leaks = dlsym(lib, "emu_leaks");
	*(void **)&emu_report_count = dlsym(lib, "emu_report_count");
	*(void **)&emu_last_report = dlsym(lib, "emu_last_report");
	*(void **)&emu_graph = dlsym(lib, "emu_graph");
	/* a test that sets an empty cache for images still reuses the emulator's objects in the
	 * cache of the test run */
	Strbuf cache = { 0 };
	if (file_cache_dir(&cache, NULL) == LLMC_OK)
		setenv("LLMC_EMU_CACHE", strbuf_str(&cache), 0);
	strbuf_release(&cache);
	setenv("LLMC_CUDA_LIBDIR", dir, 1);
	setenv("LLMC_EMU_QUIET", "1", 1);
	return emu_count && emu_count_reset && emu_fail && emu_lose && emu_failed && emu_leaks &&
	       emu_graph && emu_report_count && emu_last_report;
}

/* Return the exit status for main: a finding of the emulator fails the program even if all
 * assertions hold. */
static inline int
no_findings(int rc)
{
	if (emu_report_count() == 0)
		return rc;
	printf("%d findings of the emulator, the last: %s\n", emu_report_count(),
	       emu_last_report());
	return rc ? rc : 1;
}

static char last_log[1 << 16];

static inline void
keep_log(void *user, int level, const char *line)
{
	(void)user, (void)level;
	size_t n = strlen(last_log);
	snprintf(last_log + n, sizeof last_log - n, "%s\n", line);
}

/* Open configs/tiny.yaml. set: changes "key=value", NULL-terminated, or NULL */
static inline llmc_status
open_tiny_with(const char *device, const char *arch, const char *const *set, llmc_model **m,
               llmc_error *err)
{
	llmc_options o = LLMC_INIT(llmc_options);

	o.device = device;
	o.arch = arch;
	o.set = set;
	o.random_weights = true;
	o.n_threads = 2;
	o.log = keep_log;
	last_log[0] = 0;
	return llmc_open("configs/tiny.yaml", &o, m, err);
}

static inline llmc_status
open_tiny(const char *device, const char *arch, llmc_model **m, llmc_error *err)
{
	return open_tiny_with(device, arch, NULL, m, err);
}

/* Models shared by the tests of a program. Each is opened by the first test that uses it, and
 * closed by close_shared. A test that breaks the device, or that tests opening and closing, opens
 * its own models. */
typedef struct SharedModel {
	char name[200];
	llmc_model *m;
} SharedModel;
static SharedModel shared_model[16];

static inline SharedModel *
shared_slot(const char *device, const char *arch, const char *const *set)
{
	const size_t n_slot = sizeof shared_model / sizeof *shared_model;
	char name[200];
	size_t n = (size_t)snprintf(name, sizeof name, "%s %s", device, arch ? arch : ""), at = 0;

	for (; set && *set && n < sizeof name; set++)
		n += (size_t)snprintf(name + n, sizeof name - n, " %s", *set);
	while (at < n_slot && shared_model[at].name[0] && strcmp(shared_model[at].name, name) != 0)
		at++;
	if (n >= sizeof name || at == n_slot)
		fail_msg("no slot for another model: %s", name);
	memcpy(shared_model[at].name, name, n + 1);
	return &shared_model[at];
}

/* arch, set: see open_tiny_with */
static inline llmc_status
shared_tiny(const char *device, const char *arch, const char *const *set, llmc_model **m,
            llmc_error *err)
{
	SharedModel *s = shared_slot(device, arch, set);
	llmc_status status = s->m ? LLMC_OK : open_tiny_with(device, arch, set, &s->m, err);

	*m = s->m;
	return status;
}

/* Also called after a device failure, because all models share its context: the next test opens its
 * model again. */
static inline void
close_models(void)
{
	for (size_t i = 0; i < sizeof shared_model / sizeof *shared_model; i++) {
		llmc_close(shared_model[i].m);
		shared_model[i].m = NULL;
	}
}

/* Close the models and return the exit status; anything left on the device is a failure. */
static inline int
close_shared(int rc)
{
	close_models();
	if (emu_leaks() == 0)
		return rc;
	printf("%ld things of closed models stay on the device\n", emu_leaks());
	return rc ? rc : 1;
}

#endif
