/* The kernel of a persistent decode step: one file with the bodies of all decode kernels, each in
 * its own namespace, and a loop over the tasks (templates/cuda/runtime/persistent.h) */
#include <string.h>

#include "base/embed.h"
#include "compiler/template/template_internal.h"

enum { THREADS = PLAN_BODY_THREADS, MAX_HEADERS = 64 };

static const char entry[] = "extern \"C\" __global__", include[] = "#include \"",
                  define[] = "#define ", walk[] = "cuda/runtime/persistent.h";

static bool
starts(const char *line, const char *with)
{
	return strncmp(line, with, strlen(with)) == 0;
}

static const char *
next_line(const char *line)
{
	const char *end = strchr(line, '\n');

	return end ? end + 1 : line + strlen(line);
}

/* Call fn with each line of a kernel before its entry, i.e. each line that belongs to its body. */
static void
each_line(const Kernel *k, Strbuf *out, void (*fn)(Strbuf *out, const char *line, size_t n))
{
	for (const char *at = k->text; *at && !starts(at, entry);) {
		const char *end = next_line(at);
		fn(out, at, (size_t)(end - at));
		at = end;
	}
}

/* Write includes first, because a header must not be inside a namespace. */
static void
put_include(Strbuf *out, const char *line, size_t n)
{
	if (starts(line, include) && !memmem(out->data, out->len, line, n))
		strbuf_add(out, line, n);
}

static void
put_line(Strbuf *out, const char *line, size_t n)
{
	if (!starts(line, include))
		strbuf_add(out, line, n);
}

static void
put_undef(Strbuf *out, const char *line, size_t n)
{
	const char *name = line + sizeof define - 1;

	(void)n;
	if (starts(line, define))
		strbuf_printf(out, "#undef %.*s\n", (int)strcspn(name, "( \n"), name);
}

static void
put_kernel(Strbuf *out, const char *symbol, const Kernel *const *body, int n)
{
	strbuf_printf(out, "/* generated from the bodies of %d kernels: do not edit */\n", n);
	strbuf_printf(out, "%s%s\"\n", include, walk);
	for (int i = 0; i < n; i++)
		each_line(body[i], out, put_include);
	for (int i = 0; i < n; i++) {
		strbuf_printf(out, "\n/* %s */\nnamespace body_%d {\n", body[i]->row.file, i);
		each_line(body[i], out, put_line);
		each_line(body[i], out, put_undef);
		strbuf_puts(out, "}\n");
	}
	strbuf_printf(out,
	              "\n%s void __launch_bounds__(%d, 1)\n%s(const llmc_tasks t)\n{\n"
	              "\tSHARED(task_storage, s);\n\ttask_loop loop(t, s);\n\n\tdo {\n"
	              "\t\tconst llmc_call &p = loop.task().call;\n"
	              "\t\tcount_gate gate = loop.gate();\n"
	              "\t\tloop.begin();\n\t\tswitch (loop.task().body) {\n",
	              entry, THREADS, symbol);
	for (int i = 0; i < n; i++)
		strbuf_printf(out, "\t\tcase %d:\n\t\t\tbody_%d::%s_body(p, gate);\n\t\t\tbreak;\n",
		              i, i, body[i]->row.symbol);
	strbuf_puts(out, "\t\t}\n\t} while (loop.next());\n}\n");
}

/* Set the headers of the kernel: those of all bodies and of the loop, sorted. */
static bool
set_headers(const Templates *ts, Kernel *k, const Kernel *const *body, int n)
{
	const char **name = NEW(ts->arena, const char *, MAX_HEADERS);

	name[k->n_header++] = walk;
	for (int i = 0; i < n; i++)
		for (int h = 0; h < body[i]->n_header; h++) {
			const char *add = body[i]->header[h];
			int at = 0;
			while (at < k->n_header && strcmp(name[at], add) < 0)
				at++;
			if (at < k->n_header && strcmp(name[at], add) == 0)
				continue;
			if (k->n_header == MAX_HEADERS)
				return false;
			memmove(&name[at + 1], &name[at],
			        (size_t)(k->n_header - at) * sizeof *name);
			name[at] = add;
			k->n_header++;
		}
	k->header = name;
	return true;
}

/* Set the launch: one CTA per SM, with as much shared memory as the body that needs most. */
static bool
set_launch(Kernel *k, const Kernel *const *body, int n)
{
	int64_t shared = 0;

	for (int i = 0; i < n; i++) {
		const PlanLaunch *u = &body[i]->row.launch[0];
		if (body[i]->row.n_launch != 1 || body[i]->row.n_map || !u->fn ||
		    u->block > THREADS || u->cluster != 1 || u->rounds)
			return false;
		shared = u->shared > shared ? u->shared : shared;
	}
	k->row.n_launch = 1;
	k->row.launch[0] = (PlanLaunch){
		.block = THREADS,
		.cluster = 1,
		.grid = { { SYM_n_sm, 1, 1 }, { SYM_one, 1, 1 }, { SYM_one, 1, 1 } },
		.shared = shared,
		.rows = SYM_one,
	};
	return true;
}

const Kernel *
template_persistent(const Templates *ts, const Kernel *const *body, int n, const char **why)
{
	static const char stem[] = "decode_step";
	Arena *a = ts->arena;
	Kernel *k = NEW(a, Kernel, 1);
	Strbuf *text = arena_strbuf(a);

	if (!set_launch(k, body, n))
		return *why = "a kernel has several launches, tensor maps, clusters or rounds",
		       NULL;
	if (!set_headers(ts, k, body, n))
		return *why = "the kernels have too many headers", NULL;
	k->row.launch[0].fn = stem;
	put_kernel(text, stem, body, n);
	k->key = template_key(ts, k, strbuf_str(text));
	k->row.symbol = k->row.launch[0].fn = arena_printf(a, "%s_%s", stem, k->key);
	k->row.id = arena_printf(a, "%s.%s", stem, k->key);
	k->row.file = arena_printf(a, "kernels/%s.cu", k->row.id);
	strbuf_clear(text);
	put_kernel(text, k->row.symbol, body, n);
	if (text->failed)
		arena_out(a);
	k->text = arena_strndup(a, strbuf_str(text), text->len);
	strbuf_release(text);
	return k;
}
