/* The plan for people: what runs, on what, in how much memory. */
#include <inttypes.h>
#include <string.h>

#include "compiler/select.h"
#include "runtime/weights/layout.h"

void
emit_text(const Graph *g, const Selection *sel, const Plan *p, const char *fusions, int n_op_before, Strbuf *out)
{
	(void)g, (void)sel, (void)fusions, (void)n_op_before;
	dump_order(p, out);
}

void
emit_comment(const Graph *g, const Selection *sel, const Plan *p, int kernel, Strbuf *out)
{
	const Op *op = &g->op[sel->kernel_op[kernel]];

	strbuf_printf(out, "/* generated from %s, spec %.12s: do not edit\n *\n * %s: %s */\n", p->name, p->spec_sha256,
	              op_info[op->kind].name, op_info[op->kind].meaning);
}
