/* llmc cache: shows the content and use of the cache, and prunes it. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/build_cache.h"
#include "base/file.h"
#include "cli/cli.h"

static const char *const part[] = { "models", "kernels",   "weights", "cublaslt",
	                            "nccl",   "downloads", NULL };

typedef struct Tally {
	int64_t bytes;
	int files;
} Tally;

/* Kinds of built code (base/build_cache.h), by the suffix of an entry's name. The last row is for
 * all other suffixes. */
typedef struct CacheKind {
	const char *suffix, *what;
	Tally held;
	int64_t hits, misses;
} CacheKind;

typedef struct Sweep {
	double older_than; /* remove files unused for this many seconds; < 0: remove nothing */
	CacheKind *kind;   /* table in which files are also counted; NULL: none */
	Tally held, gone;
} Sweep;

static CacheKind *
kind_of(CacheKind *kind, const char *suffix)
{
	while (kind->suffix && strcmp(kind->suffix, suffix))
		kind++;
	return kind;
}

/* Remove an entry unless a process is loading it: readers of built code hold a lock while they
 * load. */
static bool
remove_unused(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	bool gone = (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) && unlink(path) == 0;

	if (fd >= 0)
		close(fd);
	return gone;
}

/* Count files, and remove those that were not used for this many seconds. */
static void
walk(const char *dir, Sweep *s)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		char path[PATH_MAX];
		struct stat st;
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
		    (s->kind && e->d_name[0] == '.' && strcmp(e->d_name, ".headers")) ||
		    snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path ||
		    lstat(path, &st) < 0)
			continue;
		if (S_ISDIR(st.st_mode)) {
			const double older_than = s->older_than;
			if (s->kind) /* not headers of tests, which may be running */
				s->older_than = -1;
			walk(path, s);
			s->older_than = older_than;
			if (s->older_than >= 0)
				rmdir(path); /* fails unless the folder is empty */
			continue;
		}
		time_t used = st.st_atime > st.st_mtime ? st.st_atime : st.st_mtime;
		const bool gone = s->older_than >= 0 &&
		                  difftime(time(NULL), used) >= s->older_than &&
		                  remove_unused(path);
		Tally *t = gone ? &s->gone : &s->held;
		t->bytes += st.st_size;
		t->files++;
		if (!gone && s->kind) {
			const char *dot = strrchr(e->d_name, '.');
			t = &kind_of(s->kind, dot ? dot + 1 : "")->held;
			t->bytes += st.st_size;
			t->files++;
		}
	}
	if (d)
		closedir(d);
}

/* Read hits and misses of this cache from the file that LLMC_CACHE_STATS names; false: none */
static bool
read_stats(const char *dir, CacheKind *kind)
{
	const char *path = getenv("LLMC_CACHE_STATS");
	FILE *f = path && *path ? fopen(path, "r") : NULL;
	char event[16], suffix[32], folder[PATH_MAX], kernels[PATH_MAX], real[PATH_MAX] = "-";

	snprintf(kernels, sizeof kernels, "%s/kernels", dir);
	(void)!realpath(kernels, real);
	while (f && fscanf(f, "%15s %31s %4095[^\n]", event, suffix, folder) == 3) {
		CacheKind *k = kind_of(kind, suffix);
		k->hits += !strcmp(folder, real) && !strcmp(event, "hit");
		k->misses += !strcmp(folder, real) && !strcmp(event, "miss");
	}
	if (f)
		fclose(f);
	return f != NULL;
}

static void
print_kinds(const CacheKind *kind, bool json, bool counted)
{
	char text[32];

	if (json)
		printf("],\"kinds\":[");
	for (const CacheKind *k = kind;; k++) {
		if (json && k->suffix) {
			printf("%s{\"name\":\"%s\",\"files\":%d,\"bytes\":%lld",
			       k == kind ? "" : ",", k->suffix, k->held.files,
			       (long long)k->held.bytes);
			if (counted)
				printf(",\"hits\":%lld,\"misses\":%lld", (long long)k->hits,
				       (long long)k->misses);
			printf("}");
		} else if (!json && (k->held.files || k->hits || k->misses)) {
			printf("    %-8s %5d files  %-10s", k->suffix ? k->suffix : "others",
			       k->held.files, human_bytes((double)k->held.bytes, text));
			if (counted)
				printf("  %lld hits, %lld misses", (long long)k->hits,
				       (long long)k->misses);
			printf("  %s\n", k->what);
		}
		if (!k->suffix)
			break;
	}
}

typedef struct CacheOptions {
	bool json, prune;
	double older_than;
	const char *only;
} CacheOptions;

static int
show(const CacheOptions *a, const char *dir, int64_t limit)
{
	CacheKind kind[] = {
		{ "so", "kernels for CPUs", { 0 }, 0, 0 },
		{ "cubin", "kernels for GPUs", { 0 }, 0, 0 },
		{ "emu", "kernels for the emulated GPU", { 0 }, 0, 0 },
		{ "nvrtc", "resource reports of NVRTC", { 0 }, 0, 0 },
		{ "sass", "disassembled kernels", { 0 }, 0, 0 },
		{ "test", "code built by tests", { 0 }, 0, 0 },
		{ CACHE_REFUSALS, "messages of failed compilations", { 0 }, 0, 0 },
		{ CACHE_ANSWERS, "answers of compilers and their tools", { 0 }, 0, 0 },
		{ NULL, "headers precompiled by tests", { 0 }, 0, 0 },
	};
	const bool counted = read_stats(dir, kind);
	char path[PATH_MAX], text[32], most[32];
	Tally freed = { 0 };

	for (int i = 0; part[i]; i++) {
		const bool built = !strcmp(part[i], "kernels"),
		           mine = !a->only || !strcmp(a->only, part[i]);
		Sweep s = { .older_than = a->prune && mine ? a->older_than : -1,
			    .kind = built ? kind : NULL };
		snprintf(path, sizeof path, "%s/%s", dir, part[i]);
		walk(path, &s);
		freed.bytes += s.gone.bytes;
		freed.files += s.gone.files;
		/* drop the stored total; the next writer counts again */
		if (built && s.gone.files) {
			snprintf(path, sizeof path, "%s/%s/.usage", dir, part[i]);
			unlink(path);
		}
		if (a->json)
			printf("%s{\"name\":\"%s\",\"files\":%d,\"bytes\":%lld}", i ? "," : "",
			       part[i], s.held.files, (long long)s.held.bytes);
		else
			printf("  %-10s %5d files  %s%s%s\n", part[i], s.held.files,
			       human_bytes((double)s.held.bytes, text),
			       !built  ? ""
			       : limit ? " of "
			               : ", disabled",
			       built && limit ? human_bytes((double)limit, most) : "");
		if (built && !a->json)
			print_kinds(kind, false, counted);
	}
	if (a->json) {
		print_kinds(kind, true, counted);
		printf("],\"limit_bytes\":%lld,\"freed_bytes\":%lld}\n", (long long)limit,
		       (long long)freed.bytes);
	} else if (a->prune) {
		printf("removed %d files, %s\n", freed.files,
		       human_bytes((double)freed.bytes, text));
	}
	return 0;
}

static int
cache(int argc, char **argv)
{
	bool all = false;
	int32_t days = 30, at = 0;
	CacheOptions a = { 0 };
	const char *args[1];
	Strbuf dir = { 0 };
	int64_t limit;
	llmc_error err;
	const Opt opt[] = {
		{ OPT_FLAG, 0, "prune", NULL, &a.prune,
		  "remove files that were not used for --days" },
		{ OPT_INT, 0, "days", "N", &days, "days since the last use, for --prune [30]" },
		{ OPT_FLAG, 0, "all", NULL, &all, "with --prune: remove files of any age" },
		{ OPT_TEXT, 0, "only", "PART", &a.only,
		  "with --prune: only this part, for example kernels" },
		{ OPT_FLAG, 0, "json", NULL, &a.json, "print one JSON document" },
	};

	OPT_PARSE(&cmd_cache, opt, argc, argv, args);
	if (days < 0)
		return opt_usage_error(&cmd_cache, "--days %d: expected 0 or more", days);
	while (a.only && part[at] && strcmp(part[at], a.only))
		at++;
	if (a.only && (!part[at] || !a.prune))
		return opt_usage_error(&cmd_cache,
		                       part[at] ? "--only goes with --prune"
		                                : "--only %s: expected models, kernels, weights, "
		                                  "cublaslt, nccl or downloads",
		                       a.only);
	a.older_than = all ? 0 : 86400.0 * days;
	if (file_cache_dir(&dir, &err) != LLMC_OK || cache_limit(&limit, &err) != LLMC_OK) {
		complain("%s", err.text);
		strbuf_release(&dir);
		return EXIT_MACHINE;
	}
	if (a.json) {
		printf("{\"path\":");
		json_text(stdout, dir.data, dir.len);
		printf(",\"parts\":[");
	} else {
		printf("%s\n", dir.data);
	}
	int rc = show(&a, dir.data, limit);
	strbuf_release(&dir);
	return rc;
}

const Command cmd_cache = {
	"cache",
	"[--prune [--days N | --all] [--only PART]] [--json]",
	"show the size of the cache and prune it",
	"  llmc cache\n"
	"  llmc cache --prune --days 7\n"
	"  llmc cache --prune --all --only kernels      only built code, which is compiled again "
	"when needed\n"
	"  LLMC_CACHE_SIZE=500M llmc run model.gguf    limits built code; 0 disables it\n"
	"  LLMC_CACHE_STATS=/tmp/stats llmc cache      adds hits and misses of programs that ran "
	"with this variable\n",
	cache,
};
