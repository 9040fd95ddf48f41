/* The system's C compiler: finding it, running it without a shell, and the flags of each target. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/program.h"
#include "plan/target.h"
#include "runtime/cpu/cpu_kernels.h"

static bool
query(char *const argv[], Strbuf *out)
{
	Cache cache;

	(void)cache_open(&cache, NULL, NULL); /* a missing cache does not stop the compiler */
	bool ok = program_answer(&cache, argv, out);
	cache_close(&cache);
	return ok;
}

llmc_status
cc_find(char *path, size_t path_cap, char *version, size_t version_cap, llmc_error *err)
{
	const char *own = getenv("LLMC_CC");
	const char *name[] = { own && *own ? own : "cc", "gcc", "clang" };
	size_t n = own && *own ? 1 : sizeof name / sizeof *name;

	for (size_t i = 0; i < n; i++) {
		Strbuf text = { 0 };
		if (!program_find(name[i], path, path_cap))
			continue;
		char *argv[] = { path, (char *)"--version", NULL };
		bool ok = query(argv, &text) && text.len;
		if (ok)
			snprintf(version, version_cap, "%.*s",
			         (int)strcspn(strbuf_str(&text), "\n"), strbuf_str(&text));
		strbuf_release(&text);
		if (ok)
			return LLMC_OK;
	}
	if (path_cap)
		path[0] = 0;
	if (version_cap)
		version[0] = 0;
	if (own && *own)
		return error_set(err, LLMC_E_MISSING,
		                 "LLMC_CC is \"%s\", which is no C compiler that runs; unset it or "
		                 "give the path of gcc or clang",
		                 own);
	return error_set(err, LLMC_E_MISSING,
	                 "no C compiler found (cc, gcc or clang): llmc compiles the model's "
	                 "kernels with it; install one (`apt "
	                 "install gcc libc6-dev`), name one in LLMC_CC, or run without it, slowly, "
	                 "with --device ref");
}

/* Does the compiler accept the flags of a target? output: the compiler's message if it does not */
static bool
takes(const char *cc, const Target *t, Strbuf *output)
{
	char flags[512], *argv[64], *save = NULL;
	int n = 0;

	if (snprintf(flags, sizeof flags, "%s", t->cflags) >= (int)sizeof flags)
		return false;
	argv[n++] = (char *)cc;
	for (char *w = strtok_r(flags, " ", &save); w && n < 56; w = strtok_r(NULL, " ", &save))
		argv[n++] = w;
	argv[n++] = (char *)"-Werror"; /* clang only warns about flags that it does not know */
	argv[n++] = (char *)"-fsyntax-only";
	argv[n++] = (char *)"-x";
	argv[n++] = (char *)"c";
	argv[n++] = (char *)"/dev/null";
	argv[n] = NULL;
	return query(argv, output);
}

/* Next older target that runs here; NULL: none */
static const char *
older_target(int at)
{
	while (--at >= 0)
		if (target_at(at)->kind == TARGET_CPU && isa_runs(target_at(at)->name))
			return target_at(at)->name;
	return NULL;
}

const char *
cc_target(const char *target, char *why, size_t cap)
{
	char cc[1024], version[512];
	int at = 0;
	Strbuf output = { 0 };
	const char *best = NULL;

	why[0] = 0;
	while (target_at(at) && strcmp(target_at(at)->name, target) != 0)
		at++;
	if (cc_find(cc, sizeof cc, version, sizeof version, NULL) != LLMC_OK) {
		if (prebuilt_dir(&output))
			best = older_target(at);
		if (best)
			snprintf(why, cap,
			         "no C compiler was found, and the prebuilt kernels for %s do not "
			         "fit this model",
			         target);
		strbuf_release(&output);
		return best;
	}
	for (; at >= 0 && !best && target_at(at); at--) {
		const Target *t = target_at(at);
		if (t->kind != TARGET_CPU || !isa_runs(t->name))
			continue;
		if (takes(cc, t, &output))
			best = t->name;
		else if (!*why)
			snprintf(why, cap, "%s (%s) cannot compile for %s: %.*s", cc, version,
			         t->name, (int)strcspn(strbuf_str(&output), "\n"),
			         strbuf_str(&output));
	}
	strbuf_release(&output);
	return best;
}

llmc_status
cc_flags(const char *target, char ***flags, char **text, llmc_error *err)
{
	const char *extra = getenv("LLMC_KERNEL_CFLAGS");
	Strbuf b = { 0 };
	size_t n = 0;
	char *save = NULL;

	strbuf_printf(&b,
	              "-std=gnu11 -fPIC -shared -ffp-contract=off -fno-math-errno -Wall -Wextra "
	              "-Werror %s %s",
	              target_find(target)->cflags, extra ? extra : "");
	*flags = b.failed ? NULL : calloc(b.len / 2 + 2, sizeof **flags);
	if (!*flags) {
		strbuf_release(&b);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	*text = b.data;
	for (char *w = strtok_r(b.data, " \t\n", &save); w; w = strtok_r(NULL, " \t\n", &save))
		(*flags)[n++] = w;
	return LLMC_OK;
}
