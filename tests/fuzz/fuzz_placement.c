/* Rules of --offload, --n-cpu-moe and --override-tensor, from the command line to the description:
 * rejected with a message, or placed. Both paths of a rule agree: written as an override of the
 * command line, and as a value of placement.tensors in YAML.
 *
 * Input: byte 0 selects the description, byte 1 --n-cpu-moe, then rules, one per line; a line that
 * begins with '=' is a rule of --override-tensor. */
#include "cli/cli.h"
#include "compiler/compile.h"
#include "tests/fuzz/descriptions.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LINES = 96 };

static Strbuf base[MAX_DESCRIPTIONS];
static int n_base;

static void
die(const char *what, const char *text)
{
	fprintf(stderr, "fuzz_placement: %s: %s\n", what, text);
	abort();
}

/* True if each byte keeps its value in a quoted YAML scalar of one line. */
static bool
is_plain(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 32 || (unsigned char)*text >= 127)
			return false;
	return true;
}

/* Read the description with overrides. True: accepted; layers: a letter per layer. */
static bool
read_spec(const Strbuf *yaml, const char *const *set, char *layers, size_t cap)
{
	Arena perm;
	Diag d = { 0 };
	Spec *s = NULL;

	arena_init(&perm);
	*layers = 0;
	if (setjmp(perm.oom) == 0) {
		diag_init(&d, &perm);
		if (setjmp(d.bug))
			die("a fault", strbuf_str(&d.text));
		s = spec_from_text("fuzz.yaml", yaml->data, yaml->len, set, &d, &perm);
		if (!s != (d.n_error > 0))
			die("errors and result disagree", strbuf_str(&d.text));
		size_t n = 0;
		for (int l = 0; s && l < s->n_layers && n + 2 < cap; l++)
			layers[n++] =
			    (char)('a' + 2 * s->placement.layer_in[l] + s->placement.experts_in[l]);
		if (s)
			layers[n++] = s->placement.embedding ? 'E' : '-';
		layers[n] = 0;
	}
	arena_release(&perm);
	return s != NULL;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[8192], *line[MAX_LINES], *save = NULL, placed[2][256];
	const char *rule[MAX_LINES], *tensor[MAX_LINES], *set[MAX_OFFLOAD + 1] = { NULL };
	Common c = { 0 };
	OpenOptions own;
	llmc_error err = { 0 };
	size_t n_set = 0, n_line = 0;
	bool plain = true;

	if (n_base == 0)
		n_base = descriptions_read(base);
	if (size < 2 || size > sizeof text)
		return 0;
	memcpy(text, data + 2, size - 2);
	text[size - 2] = 0;
	c.offload.v = rule;
	c.override_tensor.v = tensor;
	c.n_cpu_moe = data[1] % 8;
	for (char *at = strtok_r(text, "\n", &save); at && n_line < MAX_LINES;
	     at = strtok_r(NULL, "\n", &save)) {
		line[n_line++] = at;
		plain &= is_plain(at);
		if (*at == '=')
			tensor[c.override_tensor.n++] = at + 1;
		else
			rule[c.offload.n++] = at;
	}
	if (offload_set(&c, &own, set, &n_set, &err) != LLMC_OK) {
		if (!*err.text || n_set > MAX_OFFLOAD)
			die("a refusal without a message", err.text);
		return 0;
	}
	if (n_set > MAX_OFFLOAD)
		die("too many overrides", "");
	const Strbuf *yaml = &base[data[0] % n_base];
	const bool ok = read_spec(yaml, set, placed[0], sizeof placed[0]);
	if (!c.override_tensor.n || c.offload.n || c.n_cpu_moe || !plain)
		return 0;
	/* the same rules as a double-quoted scalar */
	Strbuf again = { 0 };
	strbuf_puts(&again, "placement.tensors=\"");
	for (size_t i = 0; i < c.override_tensor.n; i++) {
		strbuf_puts(&again, i ? "," : "");
		for (const char *p = tensor[i]; *p; p++)
			strbuf_printf(&again, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
	}
	strbuf_puts(&again, "\"");
	set[0] = strbuf_str(&again);
	if (read_spec(yaml, set, placed[1], sizeof placed[1]) != ok ||
	    strcmp(placed[0], placed[1]) != 0)
		die("two ways to write a rule differ", set[0]);
	strbuf_release(&again);
	return 0;
}
