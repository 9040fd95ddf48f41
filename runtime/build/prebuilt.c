/* Kernels that a release ships for common models: a folder with one file <key>.so per kernel, next
 * to the library or the command. This machine's compiler would build the same kernels from the
 * sources, so llmc uses these first and looks for a compiler only if some are missing. */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "runtime/build/kernel_build.h"

/* Path of the file with this code: the library, or the program it is linked into. */
static bool
own_file(char path[PATH_MAX])
{
	static const char here;
	struct link_map *map = NULL;
	Dl_info info;

	if (!dladdr1(&here, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
		return false;
	if (*map->l_name)
		return realpath(map->l_name, path) != NULL;
	/* the loader gives the program itself an empty name; without /proc, AT_EXECFN holds the
	 * name that it was started by
	 */
	return realpath("/proc/self/exe", path) ||
	       realpath((const char *)getauxval(AT_EXECFN), path);
}

bool
prebuilt_dir(Strbuf *dir)
{
	static const char *const below[] = { "llmc/kernels", "../lib/llmc/kernels" };
	const char *own = getenv("LLMC_KERNELS");
	char path[PATH_MAX], *slash;

	strbuf_clear(dir);
	if (own) {
		strbuf_puts(dir, own);
		return *own && !dir->failed && file_is_dir(own);
	}
	if (!own_file(path) || !(slash = strrchr(path, '/')))
		return false;
	*slash = 0;
	for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
		file_join(dir, path, below[i]);
		if (!dir->failed && file_is_dir(strbuf_str(dir)))
			return true;
	}
	return false;
}

int
prebuilt_count(Strbuf *dir)
{
	int n = 0;
	DIR *d = prebuilt_dir(dir) && file_check_trusted(strbuf_str(dir), NULL) == LLMC_OK
	             ? opendir(strbuf_str(dir))
	             : NULL;

	for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
		n += ends_with(e->d_name, ".so");
	if (d)
		closedir(d);
	return n;
}

void
build_prebuilt(KernelBuild *b)
{
	Strbuf dir = { 0 };
	llmc_error why = { 0 };
	bool refused = false;

	if (!prebuilt_dir(&dir))
		goto done;
	b->prebuilt = true;
	refused = file_check_trusted(strbuf_str(&dir), &why) != LLMC_OK;
	for (int i = 0; i < b->n_unit && !refused; i++) {
		BuildUnit *u = &b->unit[i];
		if (u->ready)
			continue;
		strbuf_clear(&u->entry.path);
		strbuf_printf(&u->entry.path, "%s/%s.%s", strbuf_str(&dir), u->key,
		              b->kind->suffix);
		if (!u->entry.path.failed && file_exists(strbuf_str(&u->entry.path))) {
			const llmc_status status =
			    checked_read(strbuf_str(&u->entry.path), b->kind->mark, u->key,
			                 b->kind->contents(b->target, i), &why);
			u->ready = status == LLMC_OK;
			refused = !u->ready;
		}
		if (!u->ready)
			strbuf_clear(&u->entry.path);
	}
	if (refused)
		log_line(b->opt.log, b->opt.log_user, LLMC_LOG_WARNING,
		         "%s: prebuilt kernels are not used", why.text);
done:
	strbuf_release(&dir);
}
