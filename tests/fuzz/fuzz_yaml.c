/* Compiles arbitrary text as a description, mostly for the reference. The result is a message or an
 * artifact, never an internal error of the compiler. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/compile.h"
#include "formats/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Returns false for valid descriptions that take long to compile. */
static bool
small(const Spec *s)
{
	return s->n_layers <= 16 && s->moe.n_experts <= 64;
}

static void
compile(const char *text, size_t size, Diag *d, Arena *perm, Strbuf *dump)
{
	if (setjmp(perm->oom))
		return;
	diag_init(d, perm);
	if (setjmp(d->bug)) {
		fwrite(d->text.data, 1, d->text.len, stderr);
		abort();
	}
	Spec *s = spec_from_text("fuzz.yaml", text, size, NULL, d, perm);
	if (!s != (d->n_error > 0))
		abort();
	if (!s)
		return;
	/* the description with every default written out must give an equal result */
	Spec *again = spec_from_text("resolved.yaml", s->yaml, strlen(s->yaml), NULL, d, perm);
	if (!again || strcmp(again->yaml, s->yaml) != 0 || strcmp(again->sha256, s->sha256) != 0) {
		fprintf(stderr, "%s\n%s\n", s->yaml, again ? again->yaml : strbuf_str(&d->text));
		abort();
	}
	if (!small(s))
		return;
	Compiled *c = compile_spec(s, size % 4 ? "ref" : "cpu-v3", "plan", dump, d, perm);
	if (!c != (d->n_error > 0))
		abort();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Strbuf dump = { 0 };
	Arena perm;
	Diag d;

	if (size > YAML_MAX_BYTES)
		return 0;
	arena_init(&perm);
	memset(&d, 0, sizeof d);
	compile((const char *)data, size, &d, &perm, &dump);
	if (d.n_error > 0 && d.text.len == 0)
		abort();
	strbuf_release(&dump);
	arena_release(&perm);
	return 0;
}
