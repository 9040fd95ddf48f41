#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/program.h"
#include "base/sha256.h"
#include "build.h"
#include "build_internal.h"

void
text_put(TextBuf *t, const char *s, size_t n)
{
	if (t->n + n + 1 > t->cap) {
		t->cap = 2 * (t->n + n) + 256;
		t->p = realloc(t->p, t->cap);
		if (!t->p)
			abort();
	}
	if (n)
		memcpy(t->p + t->n, s, n);
	t->n += n;
	t->p[t->n] = 0;
}

void
text_puts(TextBuf *t, const char *s)
{
	text_put(t, s, strlen(s));
}

static void
hash(SourceHash *h, const void *p, size_t n)
{
	const unsigned char *c = p;

	for (size_t i = 0; i < n; i++) {
		h->a = (h->a ^ c[i]) * 0x100000001b3ull;
		h->b = (h->b + c[i]) * 0x9e3779b97f4a7c15ull ^ h->b >> 29;
	}
}

static void
add_text(Sha256 *sum, const char *s)
{
	sha256_add(sum, s, strlen(s) + 1);
}

static char *
read_file(const char *path)
{
	TextBuf t = { 0 };
	char buf[65536];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return NULL;
	text_put(&t, "", 0);
	while ((n = read(fd, buf, sizeof buf)) > 0)
		text_put(&t, buf, (size_t)n);
	close(fd);
	return t.p;
}

/* Returns the folder of the library that contains this function. */
static const char *
home(void)
{
	static __thread char dir[4096];
	Dl_info info;

	if (!dir[0] && dladdr((void *)(uintptr_t)home, &info) && info.dli_fname) {
		char *real = realpath(info.dli_fname, NULL);
		snprintf(dir, sizeof dir, "%s", real ? real : info.dli_fname);
		free(real);
		char *slash = strrchr(dir, '/');
		if (slash)
			*slash = 0;
		else
			snprintf(dir, sizeof dir, ".");
	}
	return dir;
}

static int
run(char *const argv[], const char *out, const char *log, const char *dir)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600),
		    null = open("/dev/null", O_RDONLY);
		int to = out ? open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600) : fd;
		dup2(null, 0);
		dup2(to, 1);
		dup2(fd, 2);
		if (!dir || chdir(dir) == 0)
			execvp(argv[0], argv);
		dprintf(2, "%s: %s\n", argv[0], strerror(errno));
		_exit(127);
	}
	if (pid < 0)
		return -1;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int
write_file(const char *dir, const char *name, const char *text)
{
	char path[4600];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *f = fopen(path, "w");
	if (!f)
		return -1;
	fputs(text, f);
	return fclose(f);
}

static bool
wide_vectors(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

enum { MAX_ARGS = 256 };

/* Instruments locals too. Accumulators belong to a matrix instruction until the thread has waited
 * for it, and accesses before that must be found. */
static void
watch_locals(const char **a, int *n)
{
	static const char *const locals[] = { "-Xclang", "-fsanitize-coverage-type=1",
		                              "-Xclang", "-fsanitize-coverage-trace-loads",
		                              "-Xclang", "-fsanitize-coverage-trace-stores" };

	for (size_t i = 0; i < sizeof locals / sizeof *locals; i++)
		a[(*n)++] = locals[i];
}

static void
arguments(const NvrtcSource *s, bool check, const char **a, int *n, const char *cxx, char arch[32])
{
	static const char *const common[] = {
		"-x", "c++", "-std=c++17", "-fdeclspec", "-O1", "-g1", "-gno-column-info", "-fPIC",
		"-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-stack-protector",
		"-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off", "-fvisibility=hidden",
		"-Wno-everything", "-Werror=uninitialized", "-fno-color-diagnostics",
		"-fno-caret-diagnostics", "-fno-math-errno", "-fno-delete-null-pointer-checks",
		"-DLLMC_EMU=1", "-D__CUDACC_RTC__=1", "-include", "emu_device.h", "-mllvm",
		/* saves a fifth of the compile time; only lines are needed */
		"-experimental-debug-variable-locations=0"
	};
	static const char *const checking[] = {
		"-DLLMC_EMU_CHECK=1",
		"-fsanitize=thread,alignment,bounds,integer-divide-by-zero,shift-exponent",
		"-fsanitize=signed-integer-overflow", "-fno-wrapv",
		"-ftrivial-auto-var-init=pattern", "-fno-vectorize", "-fno-slp-vectorize",
		"-fno-unroll-loops", "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm",
		"-tsan-instrument-memintrinsics=1", "-mllvm", "-tsan-distinguish-volatile=1",
		"-Xclang", "-fdump-record-layouts", "-mllvm",
		"-tsan-instrument-read-before-write=1",
		/* In checking mode, compile time dominates. Less unrolling has little cost, because
		 * instrumentation dominates each iteration. */
		"-mllvm", "-pragma-unroll-threshold=64", "-mllvm", "-instcombine-max-iterations=1",
		"-mllvm", "-fast-isel", "-mllvm", "-regalloc=fast", "-mllvm", "-optimize-regalloc=0"
	};

	const char *level = getenv("LLMC_EMU_LEVEL");

	a[(*n)++] = cxx;
	for (size_t i = 0; i < sizeof common / sizeof *common; i++)
		a[(*n)++] = common[i];
	if (level && *level && !check) /* checking mode ignores the level of optimisation */
		a[(*n)++] = level;
	for (size_t i = 0; check && i < sizeof checking / sizeof *checking; i++)
		a[(*n)++] = checking[i];
	if (wide_vectors()) {
		a[(*n)++] = "-mavx2";
		a[(*n)++] = "-mfma";
		a[(*n)++] = "-mf16c";
	}
	snprintf(arch, 32, "-D__CUDA_ARCH__=%d0", s->arch);
	a[(*n)++] = arch;
	for (int i = 0; i < s->n_opt && *n < MAX_ARGS - 32; i++)
		a[(*n)++] = s->opt[i];
}

/* Adds to the hash the headers that the source includes by name from the -I folders, and the
 * headers that these include. System headers count as part of the compiler. */
static void
add_included(Sha256 *sum, const NvrtcSource *s, const char *text, TextBuf *seen)
{
	char name[512], mark[520], path[4700];

	for (const char *p = text; (p = strstr(p, "#include")); p++) {
		if (sscanf(p, "#include \"%500[^\"\n]\"", name) != 1)
			continue;
		snprintf(mark, sizeof mark, "\n%s\n", name);
		if (strstr(seen->p, mark))
			continue;
		text_puts(seen, mark + 1);
		for (int i = 0; i < s->n_opt; i++) {
			if (strncmp(s->opt[i], "-I", 2))
				continue;
			snprintf(path, sizeof path, "%.4096s/%s", s->opt[i] + 2, name);
			char *found = read_file(path);
			if (!found)
				continue;
			add_text(sum, name);
			add_text(sum, found);
			add_included(sum, s, found, seen);
			free(found);
		}
	}
	/* headers that the program passes may include others too */
	for (int i = 0; i < s->n_header; i++)
		if (text == s->source)
			add_included(sum, s, s->header[i], seen);
}

/* Hash of the compiler and of all parts of the emulator that determine an object; computed once per
 * process. */
static Sha256 common;
static char common_of[1024];
static pthread_mutex_t common_lock = PTHREAD_MUTEX_INITIALIZER;

static Sha256
common_sum(const Cache *cache, const char *cxx)
{
	static const char *const parts[] = { "include/emu_device.h", "include/emu_abi.h",
		                             "include/emu_mma.h",    "include/emu_math.h",
		                             "include/emu_sync.h",   "include/emu_wgmma.h",
		                             "include/warp_ops.h",   "kernel_mem.o",
		                             "obj/nvrtc/build.o" };
	char path[4400];

	pthread_mutex_lock(&common_lock);
	if (strncmp(common_of, cxx, sizeof common_of - 1)) {
		Strbuf version = { 0 }, part = { 0 };
		sha256_init(&common);
		char *argv[] = { path, (char *)(uintptr_t)"--version", NULL };
		if (program_find(cxx, path, sizeof path) && program_answer(cache, argv, &version))
			add_text(&common, strbuf_str(&version));
		for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
			snprintf(path, sizeof path, "%s/%s", home(), parts[i]);
			if (file_read(path, 1 << 24, &part, NULL) == LLMC_OK)
				sha256_add(&common, part.data, part.len);
		}
		strbuf_release(&version);
		strbuf_release(&part);
		snprintf(common_of, sizeof common_of, "%s", cxx);
	}
	Sha256 sum = common;
	pthread_mutex_unlock(&common_lock);
	return sum;
}

/* Computes the key of an object. Folder names are not part of it; the contents of included files
 * are. */
static void
key_of(const Cache *cache, const NvrtcSource *s, const char *cxx, bool check, const char **a,
       int *n, char key[65])
{
	Sha256 sum = common_sum(cache, cxx);
	TextBuf seen = { 0 };
	const int of[] = { s->arch, check };

	sha256_add(&sum, of, sizeof of);
	add_text(&sum, s->source);
	add_text(&sum, s->name);
	text_put(&seen, "\n", 1);
	add_included(&sum, s, s->source, &seen);
	if (check && (strstr(s->source, "wgmma") || strstr(seen.p, "wgmma")))
		watch_locals(a, n);
	free(seen.p);
	for (int i = 1; i < *n; i++)
		if (strncmp(a[i], "-I", 2))
			add_text(&sum, a[i]);
	for (int i = 0; i < s->n_header; i++) {
		add_text(&sum, s->header_name[i]);
		add_text(&sum, s->header[i]);
	}
	sha256_hex(&sum, key);
}

/* Writes the record layouts of the source to a file. They are a fortieth of clang's dump; the rest
 * of the dump concerns intermediate code. */
static int
write_layouts(const char *dir, const char *dump)
{
	TextBuf t = { 0 };
	bool keep = false;

	text_put(&t, "\n", 1);
	for (const char *line = dump, *end; *line; line = end) {
		end = line + strcspn(line, "\n");
		end += *end == '\n';
		if (!strncmp(line, "*** ", 4))
			keep = strstr(line, "AST Record Layout") != NULL &&
			       strstr(line, "AST Record Layout") < end;
		if (keep)
			text_put(&t, line, (size_t)(end - line));
	}
	int rc = write_file(dir, "layouts", t.p);
	free(t.p);
	return rc;
}

/* Writes the path of a shared library to `path`. */
static void
library_path(const char *name, char *path, size_t size)
{
	void *library = dlopen(name, RTLD_LAZY);
	struct link_map *map;

	snprintf(path, size, "%s",
	         library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : name);
	if (library)
		dlclose(library);
}

/* Compiles the source to dir/kernel.so; returns 0 on success. */
static int
compile(const NvrtcSource *s, bool check, const char *dir, const char **a, int n)
{
	char src[4400], obj[4400], out[4400], logs[4400], layouts[4400], mem[4400], cuda[4400],
	    include[4400], own[4400], map[4400], libm[4400], libc[4400];
	int rc;

	snprintf(src, sizeof src, "%s/kernel.cu", dir);
	snprintf(obj, sizeof obj, "%s/kernel.o", dir);
	snprintf(out, sizeof out, "%s/kernel.so", dir);
	snprintf(logs, sizeof logs, "%s/log", dir);
	snprintf(layouts, sizeof layouts, "%s/dump", dir);
	snprintf(mem, sizeof mem, "%s/kernel_mem.o", home());
	snprintf(cuda, sizeof cuda, "%s/libcuda.so.1", home());
	snprintf(include, sizeof include, "-I%s/include", home());
	snprintf(map, sizeof map, "-ffile-prefix-map=%s/include=emu", home());
	snprintf(own, sizeof own, "-I%s", dir);
	library_path("libm.so.6", libm, sizeof libm);
	library_path("libc.so.6", libc, sizeof libc);
	TextBuf t = { 0 };
	text_puts(&t, "#line 1 \"");
	text_puts(&t, s->name);
	text_puts(&t, "\"\n");
	text_puts(&t, s->source);
	text_puts(&t, "\n#line 1 \"emu_exports\"\n");
	build_exports(&t, s->source);
	rc = write_file(dir, "kernel.cu", t.p);
	free(t.p);
	for (int i = 0; i < s->n_header; i++)
		if (!strchr(s->header_name[i], '/'))
			rc |= write_file(dir, s->header_name[i], s->header[i]);
	const char *const more[] = { include, map, own, "-c", src, "-o", obj, NULL };
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		a[n + (int)i] = more[i];
	if (!rc)
		rc = run((char *const *)(uintptr_t)a, check ? layouts : NULL, logs, NULL);
	if (!rc && check) {
		char *dump = read_file(layouts);
		rc = dump ? write_layouts(dir, dump) : -1;
		free(dump);
	}
	/* Calls the linker directly, because the compiler's driver takes longer to start than to
	 * link. The layouts become data between two symbols that are named after the layout file,
	 * so the linker runs in that file's folder. */
	if (!rc) {
		const char *l[] = { "ld",          "-shared", "-Bsymbolic",
			            "-z",          "defs",    "-z",
			            "noexecstack", obj,       mem,
			            cuda,          libm,      libc,
			            "-o",          out,       check ? "--format=binary" : NULL,
			            "layouts",     NULL };
		rc = run((char *const *)(uintptr_t)l, NULL, logs, dir);
	}
	return rc;
}

void
build_warn_once(bool *warned, const char *why, const char *what)
{
	if (!__atomic_exchange_n(warned, true, __ATOMIC_RELAXED))
		fprintf(stderr, "emulator: %s: %s\n", why, what);
}

static bool
take(const Cache *cache, const char *key, Built *out)
{
	static bool warned;
	llmc_error err;

	llmc_status status = cache_find(cache, "emu", key, &out->entry, NULL, &err);
	if (status == LLMC_E_CHECK)
		build_warn_once(&warned, err.text, "it is built again");
	return status == LLMC_OK;
}

/* Stores the object in the cache. Returns false if the cache accepts no more objects. */
static bool
keep(const Cache *cache, const char *key, const char *dir, Built *out)
{
	Strbuf path = { 0 }, object = { 0 };
	bool kept = false;

	file_join(&path, dir, "kernel.so");
	if (cache_keeps(cache) &&
	    file_read(strbuf_str(&path), 1 << 28, &object, &out->unkept) == LLMC_OK)
		kept = cache_put(cache, "emu", key, object.data, object.len, &out->entry,
		                 &out->unkept) == LLMC_OK;
	if (!kept) {
		strbuf_clear(&out->entry.path);
		strbuf_puts(&out->entry.path, strbuf_str(&path));
		strbuf_puts(&out->temporary, dir);
	}
	strbuf_release(&path);
	strbuf_release(&object);
	return kept;
}

/* Returns the messages of an earlier failed compilation of the same key; NULL: none is known. */
static char *
refusal(const Cache *cache, const char *key)
{
	CacheEntry entry = { 0 };
	Strbuf text = { 0 };
	char *log = NULL;

	if (cache_find(cache, CACHE_REFUSALS, key, &entry, &text, NULL) == LLMC_OK)
		log = strdup(strbuf_str(&text));
	cache_entry_release(&entry);
	strbuf_release(&text);
	return log;
}

/* Stores the messages of a failed compilation if they depend on the source alone. A compiler that
 * was killed or ran out of space may succeed next time, and messages with names of this temporary
 * folder mean nothing later. */
static void
keep_refusal(const Cache *cache, const char *key, int rc, const char *dir, const char *log)
{
	if (rc == 1 && strstr(log, ": error: ") && !strstr(log, dir) &&
	    !strstr(log, "No space left") && !strstr(log, "unable to "))
		(void)cache_put(cache, CACHE_REFUSALS, key, log, strlen(log), NULL, NULL);
}

bool
build_object(const NvrtcSource *s, bool check, Built *out, char **log)
{
	const char *cxx = getenv("LLMC_EMU_CXX"), *own = getenv("LLMC_EMU_CACHE"), *a[MAX_ARGS];
	char arch[32], key[65], logs[4400], *dir = NULL;
	Cache cache;
	Strbuf tmp = { 0 };
	llmc_error err = { 0 };
	int n = 0, rc = -1;

	*out = (Built){ 0 };
	cxx = cxx && *cxx ? cxx : "clang++";
	*log = strdup("");
	(void)cache_open(&cache, own && *own ? own : NULL,
	                 &out->unkept); /* without the cache, only this process uses the object */
	arguments(s, check, a, &n, cxx, arch);
	key_of(&cache, s, cxx, check, a, &n, key);
	char *known = refusal(&cache, key);
	if (known || take(&cache, key, out)) {
		if (known) {
			free(*log);
			*log = known;
		}
		cache_close(&cache);
		return !known;
	}
	if (cache_temporary(&cache, &tmp, &err) == LLMC_OK)
		dir = realpath(strbuf_str(&tmp), NULL);
	if (dir) {
		rc = compile(s, check, dir, a, n);
		snprintf(logs, sizeof logs, "%s/log", dir);
		char *text = read_file(logs);
		if (text) {
			free(*log);
			*log = text;
		}
		keep_refusal(&cache, key, rc, dir, *log);
	} else {
		free(*log);
		*log = strdup(err.text);
	}
	if (rc == 0 ? keep(&cache, key, dir, out) : dir != NULL)
		cache_temporary_remove(dir);
	free(dir);
	strbuf_release(&tmp);
	cache_close(&cache);
	return rc == 0;
}

void
build_release(Built *b)
{
	if (b->temporary.len)
		cache_temporary_remove(strbuf_str(&b->temporary));
	strbuf_release(&b->temporary);
	cache_entry_release(&b->entry);
}

typedef struct {
	char magic[8];
	uint32_t version, arch;
	uint32_t exact, ptx;
	uint32_t n_opt, n_header;
	uint64_t bytes;
	SourceHash sum;
} ImageHead;
static const char MAGIC[8] = "\177EMUIMG";

char *
image_write(const NvrtcSource *s, size_t *bytes)
{
	TextBuf t = { 0 };
	ImageHead h = { .version = 1,
		        .arch = (uint32_t)s->arch,
		        .exact = s->exact,
		        .ptx = s->ptx,
		        .n_opt = (uint32_t)s->n_opt,
		        .n_header = (uint32_t)s->n_header };

	memcpy(h.magic, MAGIC, 8);
	text_put(&t, (char *)&h, sizeof h);
	text_put(&t, s->name, strlen(s->name) + 1);
	text_put(&t, s->source, strlen(s->source) + 1);
	for (int i = 0; i < s->n_opt; i++)
		text_put(&t, s->opt[i], strlen(s->opt[i]) + 1);
	for (int i = 0; i < s->n_header; i++) {
		text_put(&t, s->header_name[i], strlen(s->header_name[i]) + 1);
		text_put(&t, s->header[i], strlen(s->header[i]) + 1);
	}
	h.bytes = t.n;
	hash(&h.sum, t.p + sizeof h, t.n - sizeof h);
	memcpy(t.p, &h, sizeof h);
	*bytes = t.n;
	return t.p;
}

int
image_read(const void *image, NvrtcSource *s)
{
	ImageHead h;
	SourceHash sum = { 0, 0 };
	const char *p = image;

	if (memcmp(p, MAGIC, 8))
		return -1;
	memcpy(&h, p, sizeof h);
	if (h.version != 1 || h.bytes < sizeof h || h.bytes > 64u << 20 || h.n_opt > 64 ||
	    h.n_header > 64)
		return -1;
	hash(&sum, p + sizeof h, h.bytes - sizeof h);
	if (sum.a != h.sum.a || sum.b != h.sum.b)
		return -1;
	*s = (NvrtcSource){ .arch = (int)h.arch,
		            .exact = h.exact,
		            .ptx = h.ptx,
		            .n_opt = (int)h.n_opt,
		            .n_header = (int)h.n_header };
	char *copy = malloc(h.bytes);
	const char **opt = calloc(h.n_opt + 1, sizeof *opt),
	           **name = calloc(h.n_header + 1, sizeof *name),
	           **text = calloc(h.n_header + 1, sizeof *text);
	memcpy(copy, p, h.bytes);
	char *q = copy + sizeof h;
	s->name = q, q += strlen(q) + 1;
	s->source = q, q += strlen(q) + 1;
	for (uint32_t i = 0; i < h.n_opt; i++)
		opt[i] = q, q += strlen(q) + 1;
	for (uint32_t i = 0; i < h.n_header; i++) {
		name[i] = q, q += strlen(q) + 1;
		text[i] = q, q += strlen(q) + 1;
	}
	s->opt = opt;
	s->header_name = name;
	s->header = text;
	return 0;
}

void
image_close(NvrtcSource *s)
{
	free((char *)(uintptr_t)s->name - sizeof(ImageHead));
	free((void *)(uintptr_t)s->opt);
	free((void *)(uintptr_t)s->header_name);
	free((void *)(uintptr_t)s->header);
}
