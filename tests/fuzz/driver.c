/* Stands in for libFuzzer where there is no clang: replays every file of the folders given, then seeded mutations of
 * them. Takes -runs=, -seed=, -max_len=, -max_total_time= and -artifact_prefix= as libFuzzer does and passes over its
 * other options. Same seed, same inputs. An input that ends the process is written to <prefix>crash first. */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

typedef struct Input { uint8_t *data; size_t size; } Input;

static Input   *corpus;
static size_t   n_corpus;
static Input    now; /* what runs, for the report */
static char     crash_path[1024] = "crash";
static uint64_t rng = 1;
static size_t   max_len = 4096;

static void
save_input(void)
{
	FILE *f = fopen(crash_path, "wb");

	if (f) {
		if (now.size)
			fwrite(now.data, 1, now.size, f);
		fclose(f);
	}
	fprintf(stderr, "driver: the input of %zu bytes is in %s\n", now.size, crash_path);
}

static void
on_signal(int sig)
{
	save_input();
	signal(sig, SIG_DFL);
	raise(sig);
}

/* An input that never ends is a fault too. Processor time, so that a loaded machine makes none. */
static void
limit_time(void)
{
	setitimer(ITIMER_PROF, &(struct itimerval){ .it_value.tv_sec = 20 }, NULL);
}

static uint32_t
pick(uint32_t n) /* below n */
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return n ? (uint32_t)(rng >> 16) % n : 0;
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void
load(const char *path)
{
	struct stat st;
	FILE *f;

	if (stat(path, &st) < 0)
		return;
	if (S_ISDIR(st.st_mode)) {
		char *name[4096];
		size_t n = 0;
		DIR *d = opendir(path);
		for (struct dirent *e; d && (e = readdir(d)) != NULL && n < 4096;)
			if (e->d_name[0] != '.' && asprintf(&name[n], "%s/%s", path, e->d_name) > 0)
				n++;
		if (d)
			closedir(d);
		qsort(name, n, sizeof *name, by_name);
		for (size_t i = 0; i < n; i++) {
			load(name[i]);
			free(name[i]);
		}
		return;
	}
	Input in = { malloc((size_t)st.st_size + 1), 0 };
	Input *grown = realloc(corpus, (n_corpus + 1) * sizeof *corpus);
	f = fopen(path, "rb");
	if (!in.data || !grown || !f)
		exit(2);
	in.size = fread(in.data, 1, (size_t)st.st_size, f);
	fclose(f);
	corpus = grown;
	corpus[n_corpus++] = in;
}

/* Runs a copy of exact size, so that ASan sees a read one byte beyond. */
static void
run(const uint8_t *data, size_t size)
{
	now = (Input){ malloc(size ? size : 1), size };
	if (!now.data)
		exit(2);
	if (size)
		memcpy(now.data, data, size);
	LLVMFuzzerTestOneInput(now.data, size);
	free(now.data);
	now = (Input){ 0 };
}

static size_t
mutate(uint8_t *b, size_t n)
{
	static const uint64_t odd[] = { 0, 1, 8, 32, 127, 128, 255, 256, 65535, 0x7fffffff, 0x80000000, 0xffffffff,
		                        0x100000000, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff };
	size_t at = pick((uint32_t)n + 1), len = 1 + pick(16);

	switch (pick(8)) {
	case 0: /* flip a bit */
		if (at < n)
			b[at] ^= (uint8_t)(1 << pick(8));
		return n;
	case 1: /* any byte */
		if (at < n)
			b[at] = (uint8_t)pick(256);
		return n;
	case 2: { /* a number with a habit of overflowing */
		size_t width = (size_t)1 << pick(4);
		if (n >= width)
			memcpy(b + pick((uint32_t)(n - width) + 1), &odd[pick(sizeof odd / sizeof *odd)], width);
		return n;
	}
	case 3: /* a little more or less */
		if (at < n)
			b[at] = (uint8_t)(b[at] + pick(9) - 4);
		return n;
	case 4: /* cut out */
		if (len > n - at)
			len = n - at;
		memmove(b + at, b + at + len, n - at - len);
		return n - len;
	case 5: /* twice the same */
		if (len > n - at)
			len = n - at;
		if (n + len > max_len)
			return n;
		memmove(b + at + len, b + at, n - at);
		return n + len;
	case 6: /* a digit, often the start of another number */
		if (n >= max_len)
			return n;
		memmove(b + at + 1, b + at, n - at);
		b[at] = (uint8_t)"0123456789-.eE\"'[]{}:,# \n"[pick(25)];
		return n + 1;
	default: { /* a piece of another input */
		const Input *in = &corpus[pick((uint32_t)n_corpus)];
		size_t from = pick((uint32_t)in->size + 1);
		if (len > in->size - from)
			len = in->size - from;
		if (len > max_len - at)
			len = max_len - at;
		memcpy(b + at, in->data + from, len);
		return at + len > n ? at + len : n;
	}
	}
}

int
main(int argc, char **argv)
{
	long runs = 0, max_time = 0, done = 0;

	for (int i = 1; i < argc; i++) {
		const char *a = argv[i];
		if (strncmp(a, "-runs=", 6) == 0)
			runs = atol(a + 6);
		else if (strncmp(a, "-seed=", 6) == 0)
			rng = strtoull(a + 6, NULL, 10) * 0x9e3779b97f4a7c15 + 1;
		else if (strncmp(a, "-max_len=", 9) == 0)
			max_len = strtoull(a + 9, NULL, 10);
		else if (strncmp(a, "-max_total_time=", 16) == 0)
			max_time = atol(a + 16);
		else if (strncmp(a, "-artifact_prefix=", 17) == 0)
			snprintf(crash_path, sizeof crash_path, "%scrash", a + 17);
		else if (a[0] != '-')
			load(a);
	}
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(save_input);
	signal(SIGABRT, on_signal);
	signal(SIGPROF, on_signal);
	run(NULL, 0);
	for (size_t i = 0; i < n_corpus; i++) {
		limit_time();
		run(corpus[i].data, corpus[i].size);
	}
	uint8_t *b = malloc(max_len);
	time_t end = time(NULL) + max_time;
	while (b && n_corpus && (max_time ? time(NULL) < end : done < runs)) {
		const Input *in = &corpus[pick((uint32_t)n_corpus)];
		size_t n = in->size < max_len ? in->size : max_len;
		memcpy(b, in->data, n);
		for (uint32_t k = 1 + pick(5); k; k--)
			n = mutate(b, n);
		limit_time();
		run(b, n);
		done++;
	}
	printf("driver: %zu kept inputs and %ld mutations\n", n_corpus, done);
	free(b);
	for (size_t i = 0; i < n_corpus; i++)
		free(corpus[i].data);
	free(corpus);
	return 0;
}
