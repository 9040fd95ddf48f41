#include "build.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { char *p; size_t n, cap; } TextBuf;
typedef struct { uint64_t a, b; } SourceHash;

static void
put(TextBuf *t, const char *s, size_t n)
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

static void
puts_(TextBuf *t, const char *s)
{
	put(t, s, strlen(s));
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
hash_text(SourceHash *h, const char *s)
{
	hash(h, s, strlen(s) + 1);
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
	put(&t, "", 0);
	while ((n = read(fd, buf, sizeof buf)) > 0)
		put(&t, buf, (size_t)n);
	close(fd);
	return t.p;
}

/* Folder of the library this function is in. */
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

/* ---- which kernels are in there ---- */

static bool
word_at(const char *src, size_t i, const char *w)
{
	size_t n = strlen(w);
	return !strncmp(src + i, w, n) && !(isalnum((unsigned char)src[i + n]) || src[i + n] == '_')
	    && (!i || !(isalnum((unsigned char)src[i - 1]) || src[i - 1] == '_'));
}

/* The source with comments and strings blanked, so that only code is searched. */
static char *
blank(const char *src)
{
	char *s = strdup(src);

	for (size_t i = 0; s[i];) {
		if (s[i] == '/' && s[i + 1] == '/') {
			while (s[i] && s[i] != '\n')
				s[i++] = ' ';
		} else if (s[i] == '/' && s[i + 1] == '*') {
			while (s[i] && !(s[i] == '*' && s[i + 1] == '/'))
				s[i++] = ' ';
			if (s[i])
				s[i] = s[i + 1] = ' ', i += 2;
		} else if (s[i] == '"' || (s[i] == '\'' && !(i && isalnum((unsigned char)s[i - 1])))) {
			char q = s[i++];
			while (s[i] && s[i] != q && s[i] != '\n') {
				if (s[i] == '\\' && s[i + 1])
					s[i++] = ' ';
				s[i++] = ' ';
			}
			if (s[i])
				i++;
		} else {
			i++;
		}
	}
	return s;
}

static size_t
skip_parens(const char *s, size_t i)
{
	int depth = 0;

	do {
		depth += s[i] == '(';
		depth -= s[i] == ')';
		i++;
	} while (s[i] && depth);
	return i;
}

/* One line per `__global__ ... name(`; launch bounds are repeated, to be evaluated at the end of the file. */
static void
exports(TextBuf *t, const char *source)
{
	char *s = blank(source);

	for (size_t i = 0; s[i]; i++) {
		if (!word_at(s, i, "__global__"))
			continue;
		size_t j = i + 10, bounds = 0, bounds_end = 0;
		size_t line = i;
		while (line && s[line - 1] != '\n')
			line--;
		while (s[line] == ' ' || s[line] == '\t')
			line++;
		if (s[line] == '#')
			continue;
		while (s[j]) {
			while (s[j] && !isalpha((unsigned char)s[j]) && s[j] != '_' && s[j] != ';' && s[j] != '{')
				j++;
			if (!isalpha((unsigned char)s[j]) && s[j] != '_')
				break;
			size_t w = j;
			while (isalnum((unsigned char)s[j]) || s[j] == '_')
				j++;
			size_t e = j;
			while (isspace((unsigned char)s[j]))
				j++;
			if (s[j] != '(')
				continue;
			if (!strncmp(s + w, "__", 2)) {
				size_t end = skip_parens(s, j);
				if (word_at(s, w, "__launch_bounds__"))
					bounds = j, bounds_end = end;
				j = end;
				continue;
			}
			TextBuf b = { 0 };
			put(&b, s + bounds, bounds_end - bounds);
			puts_(t, bounds_end ? "EMU_EXPORT_BOUNDS(" : "EMU_EXPORT(");
			put(t, s + w, e - w);
			if (bounds_end) {
				puts_(t, ", ");
				put(t, b.p + 1, b.n - 2);
			}
			puts_(t, ")\n");
			free(b.p);
			break;
		}
	}
	free(s);
}

/* ---- running the compiler ---- */

static int
run(char *const argv[], const char *out, const char *log)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600), null = open("/dev/null", O_RDONLY);
		int to = out ? open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600) : fd;
		dup2(null, 0);
		dup2(to, 1);
		dup2(fd, 2);
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

static void
remove_tree(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	char path[4600];

	while (d && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		unlink(path);
	}
	if (d)
		closedir(d);
	rmdir(dir);
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

static void
arguments(const NvrtcSource *s, bool check, bool wgmma, const char **a, int *n, const char *cxx, char arch[32], char include[4200])
{
	static const char *const common[] = { "-x", "c++", "-std=c++17", "-fdeclspec", "-O1", "-g1", "-fPIC", "-fno-exceptions", "-fno-rtti",
		"-fno-threadsafe-statics", "-fno-stack-protector", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-everything", "-Werror=uninitialized",
		"-fno-color-diagnostics", "-fno-caret-diagnostics", "-fno-math-errno", "-fno-delete-null-pointer-checks", "-DLLMC_EMU=1", "-D__CUDACC_RTC__=1", "-include", "emu_device.h",
		"-mllvm", "-experimental-debug-variable-locations=0" /* lines are wanted, and finding variables takes a fifth of the time */ };
	static const char *const checking[] = { "-DLLMC_EMU_CHECK=1", "-fsanitize=thread,alignment,bounds,integer-divide-by-zero,shift-exponent,signed-integer-overflow",
		"-fno-wrapv", "-ftrivial-auto-var-init=pattern", "-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops",
		"-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-memintrinsics=1",
		"-mllvm", "-tsan-distinguish-volatile=1", "-Xclang", "-fdump-record-layouts", "-mllvm", "-tsan-instrument-read-before-write=1",
		/* the hooks take most of what such a kernel takes to run, the compiler most of all */
		"-mllvm", "-regalloc=fast", "-mllvm", "-optimize-regalloc=0" };

	/* Then locals are watched too: accumulators belong to the matrix instruction until it has been waited for. */
	static const char *const locals[] = { "-Xclang", "-fsanitize-coverage-type=1", "-Xclang", "-fsanitize-coverage-trace-loads", "-Xclang",
		"-fsanitize-coverage-trace-stores" };

	const char *level = getenv("LLMC_EMU_LEVEL");

	a[(*n)++] = cxx;
	for (size_t i = 0; i < sizeof common / sizeof *common; i++)
		a[(*n)++] = common[i];
	if (level && *level && !check) /* what the checking mode watches is the same whatever this says */
		a[(*n)++] = level;
	for (size_t i = 0; check && i < sizeof checking / sizeof *checking; i++)
		a[(*n)++] = checking[i];
	for (size_t i = 0; check && wgmma && i < sizeof locals / sizeof *locals; i++)
		a[(*n)++] = locals[i];
	if (wide_vectors()) {
		a[(*n)++] = "-mavx2";
		a[(*n)++] = "-mfma";
		a[(*n)++] = "-mf16c";
	}
	snprintf(arch, 32, "-D__CUDA_ARCH__=%d0", s->arch);
	snprintf(include, 4200, "-I%s/include", home());
	a[(*n)++] = arch;
	a[(*n)++] = include;
	for (int i = 0; i < s->n_opt && *n < MAX_ARGS - 16; i++)
		a[(*n)++] = s->opt[i];
}

/* What the text includes by name from the -I folders, and what that includes; others' headers do not matter. */
static void
hash_included(SourceHash *h, const NvrtcSource *s, const char *text, TextBuf *seen)
{
	char name[512], mark[520], path[4700];

	for (const char *p = text; (p = strstr(p, "#include")); p++) {
		if (sscanf(p, "#include \"%500[^\"\n]\"", name) != 1)
			continue;
		snprintf(mark, sizeof mark, "\n%s\n", name);
		if (strstr(seen->p, mark))
			continue;
		puts_(seen, mark + 1);
		for (int i = 0; i < s->n_opt; i++) {
			if (strncmp(s->opt[i], "-I", 2))
				continue;
			snprintf(path, sizeof path, "%.4096s/%s", s->opt[i] + 2, name);
			char *found = read_file(path);
			if (!found)
				continue;
			hash_text(h, name);
			hash_text(h, found);
			hash_included(h, s, found, seen);
			free(found);
		}
	}
	for (int i = 0; i < s->n_header; i++) /* given by the program, they may include too */
		if (text == s->source)
			hash_included(h, s, s->header[i], seen);
}

static SourceHash
key_of(const NvrtcSource *s, bool check, bool *wgmma)
{
	SourceHash h = { 0xcbf29ce484222325ull, 7 };
	static const char *const parts[] = { "emu_device.h", "emu_abi.h", "emu_mma.h", "emu_math.h", "emu_sync.h", "emu_wgmma.h", "warp_ops.h" };
	char path[4400];

	hash_text(&h, s->source);
	hash_text(&h, s->name);
	hash(&h, &s->arch, sizeof s->arch);
	hash(&h, &check, sizeof check);
	for (int i = 0; i < s->n_opt; i++)
		hash_text(&h, s->opt[i]);
	TextBuf seen = { 0 };
	put(&seen, "\n", 1);
	hash_included(&h, s, s->source, &seen);
	*wgmma = strstr(s->source, "wgmma") || strstr(seen.p, "wgmma");
	free(seen.p);
	for (int i = 0; i < s->n_header; i++) {
		hash_text(&h, s->header_name[i]);
		hash_text(&h, s->header[i]);
	}
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		snprintf(path, sizeof path, "%s/include/%s", home(), parts[i]);
		char *text = read_file(path);
		if (text)
			hash_text(&h, text);
		free(text);
	}
	bool wide = wide_vectors();
	hash(&h, &wide, sizeof wide);
	return h;
}

char *
build_object(const NvrtcSource *s, bool check, char **log)
{
	static int counter;
	const char *cxx = getenv("LLMC_EMU_CXX"), *cache = getenv("LLMC_EMU_CACHE");
	char dir[4200], tmp[4300], path[4400], src[4400], obj[4400], out[4400], logs[4400], layouts[4400], mem[4400], cuda[4400], dirs[4310], arch[32], include[4200];
	const char *a[MAX_ARGS];
	char *result = NULL;
	int n = 0, rc;

	cxx = cxx && *cxx ? cxx : "clang++";
	if (cache && *cache)
		snprintf(dir, sizeof dir, "%s", cache);
	else
		snprintf(dir, sizeof dir, "%s/cache", home());
	mkdir(dir, 0700);
	bool wgmma;
	SourceHash h = key_of(s, check, &wgmma);
	arguments(s, check, wgmma, a, &n, cxx, arch, include);
	for (int i = 0; i < n; i++)
		hash_text(&h, a[i]);
	snprintf(path, sizeof path, "%s/%016llx%016llx.so", dir, (unsigned long long)h.a, (unsigned long long)h.b);
	*log = strdup("");
	if (!access(path, R_OK))
		return strdup(path);
	snprintf(tmp, sizeof tmp, "%s/tmp.%d.%d", dir, (int)getpid(), __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED));
	mkdir(tmp, 0700);
	snprintf(src, sizeof src, "%s/kernel.cu", tmp);
	snprintf(obj, sizeof obj, "%s/kernel.o", tmp);
	snprintf(out, sizeof out, "%s/kernel.so", tmp);
	snprintf(logs, sizeof logs, "%s/log", tmp);
	snprintf(layouts, sizeof layouts, "%s/kernel.la", tmp);
	snprintf(mem, sizeof mem, "%s/kernel_mem.o", home());
	snprintf(cuda, sizeof cuda, "%s/libcuda.so.1", home());
	snprintf(dirs, sizeof dirs, "-I%s", tmp);
	TextBuf t = { 0 };
	puts_(&t, "#line 1 \"");
	puts_(&t, s->name);
	puts_(&t, "\"\n");
	puts_(&t, s->source);
	puts_(&t, "\n#line 1 \"emu_exports\"\n");
	exports(&t, s->source);
	rc = write_file(tmp, "kernel.cu", t.p);
	free(t.p);
	for (int i = 0; i < s->n_header; i++)
		if (!strchr(s->header_name[i], '/'))
			rc |= write_file(tmp, s->header_name[i], s->header[i]);
	a[n++] = dirs;
	a[n++] = "-c";
	a[n++] = src;
	a[n++] = "-o";
	a[n++] = obj;
	a[n] = NULL;
	if (!rc)
		rc = run((char *const *)(uintptr_t)a, check ? layouts : NULL, logs);
	if (!rc) {
		const char *l[] = { cxx, "-shared", "-nostdlib", "-Wl,-Bsymbolic", "-Wl,-z,defs", obj, mem, cuda, "-lm", "-lc", "-o", out, NULL };
		rc = run((char *const *)(uintptr_t)l, NULL, logs);
	}
	char *said = read_file(logs);
	if (said) {
		free(*log);
		*log = said;
	}
	char beside[4400];
	snprintf(beside, sizeof beside, "%.*sla", (int)strlen(path) - 2, path);
	if (!rc && (!check || !rename(layouts, beside)) && !rename(out, path))
		result = strdup(path);
	remove_tree(tmp);
	return result;
}

/* ---- images ---- */

typedef struct { char magic[8]; uint32_t version, arch; uint32_t exact, ptx; uint32_t n_opt, n_header; uint64_t bytes; SourceHash sum; } ImageHead;
static const char MAGIC[8] = "\177EMUIMG";

char *
image_write(const NvrtcSource *s, size_t *bytes)
{
	TextBuf t = { 0 };
	ImageHead h = { .version = 1, .arch = (uint32_t)s->arch, .exact = s->exact, .ptx = s->ptx, .n_opt = (uint32_t)s->n_opt,
	           .n_header = (uint32_t)s->n_header };

	memcpy(h.magic, MAGIC, 8);
	put(&t, (char *)&h, sizeof h);
	put(&t, s->name, strlen(s->name) + 1);
	put(&t, s->source, strlen(s->source) + 1);
	for (int i = 0; i < s->n_opt; i++)
		put(&t, s->opt[i], strlen(s->opt[i]) + 1);
	for (int i = 0; i < s->n_header; i++) {
		put(&t, s->header_name[i], strlen(s->header_name[i]) + 1);
		put(&t, s->header[i], strlen(s->header[i]) + 1);
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
	if (h.version != 1 || h.bytes < sizeof h || h.bytes > 64u << 20 || h.n_opt > 64 || h.n_header > 64)
		return -1;
	hash(&sum, p + sizeof h, h.bytes - sizeof h);
	if (sum.a != h.sum.a || sum.b != h.sum.b)
		return -1;
	*s = (NvrtcSource){ .arch = (int)h.arch, .exact = h.exact, .ptx = h.ptx, .n_opt = (int)h.n_opt, .n_header = (int)h.n_header };
	char *copy = malloc(h.bytes);
	const char **opt = calloc(h.n_opt + 1, sizeof *opt), **name = calloc(h.n_header + 1, sizeof *name), **text = calloc(h.n_header + 1, sizeof *text);
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
