/* llmc cache: what the cache holds, and pruning it. */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

static bool
cache_dir(char *out, size_t cap)
{
	const char *own = getenv("LLMC_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	if (own && *own)
		snprintf(out, cap, "%s", own);
	else if (xdg && *xdg == '/')
		snprintf(out, cap, "%s/llmc", xdg);
	else if (home && *home)
		snprintf(out, cap, "%s/.cache/llmc", home);
	else
		return false;
	return true;
}

typedef struct Tally { int64_t bytes; int files; } Tally;

/* Sum up, and with `older_than` >= 0 remove files not used for so many seconds. */
static void
walk(const char *dir, double older_than, Tally *held, Tally *gone)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		char path[PATH_MAX];
		struct stat st;
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
		    snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path || lstat(path, &st) < 0)
			continue;
		if (S_ISDIR(st.st_mode)) {
			walk(path, older_than, held, gone);
			if (older_than >= 0)
				rmdir(path); /* only when empty */
			continue;
		}
		time_t used = st.st_atime > st.st_mtime ? st.st_atime : st.st_mtime;
		Tally *t = older_than >= 0 && difftime(time(NULL), used) >= older_than && unlink(path) == 0 ? gone : held;
		t->bytes += st.st_size;
		t->files++;
	}
	if (d)
		closedir(d);
}

static int
cache(int argc, char **argv)
{
	static const char *const part[] = { "models", "kernels", "weights", "cublaslt", "downloads" };
	bool json = false, prune = false, all = false;
	int32_t days = 30;
	char dir[PATH_MAX / 2], text[32];
	const char *args[1];
	const Opt opt[] = {
		{ OPT_FLAG, 0, "prune", NULL, &prune, "remove what was not used for --days" },
		{ OPT_INT, 0, "days", "N", &days, "age for --prune [30]" },
		{ OPT_FLAG, 0, "all", NULL, &all, "with --prune: whatever its age" },
		{ OPT_FLAG, 0, "json", NULL, &json, "one JSON document" },
	};

	OPT_PARSE(&cmd_cache, opt, argc, argv, args);
	if (days < 0)
		return opt_usage_error(&cmd_cache, "--days %d: expected 0 or more", days);
	if (!cache_dir(dir, sizeof dir)) {
		complain("no cache folder: set LLMC_CACHE or HOME");
		return EXIT_MACHINE;
	}
	if (json) {
		printf("{\"path\":");
		json_text(stdout, dir, strlen(dir));
		printf(",\"parts\":[");
	} else {
		printf("%s\n", dir);
	}
	Tally freed = { 0 };
	for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
		char path[PATH_MAX];
		Tally held = { 0 }, gone = { 0 };
		snprintf(path, sizeof path, "%s/%s", dir, part[i]);
		walk(path, !prune ? -1 : all ? 0 : 86400.0 * days, &held, &gone);
		freed.bytes += gone.bytes;
		freed.files += gone.files;
		if (json)
			printf("%s{\"name\":\"%s\",\"files\":%d,\"bytes\":%lld}", i ? "," : "", part[i], held.files, (long long)held.bytes);
		else
			printf("  %-10s %5d files  %s\n", part[i], held.files, human_bytes((double)held.bytes, text));
	}
	if (json)
		printf("],\"freed_bytes\":%lld}\n", (long long)freed.bytes);
	else if (prune)
		printf("removed %d files, %s\n", freed.files, human_bytes((double)freed.bytes, text));
	return 0;
}

const Command cmd_cache = {
	"cache", "[--prune [--days N | --all]] [--json]", "what the cache holds, and pruning it",
	"  llmc cache\n"
	"  llmc cache --prune --days 7\n",
	cache,
};
