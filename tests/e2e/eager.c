/* Library of test_draft_checkpoints.py, built against the headers of the library under test. */
#include "api/api.h"
#include "runtime/engine/engine_internal.h"

void draft_in_each_step(llmc_engine *e);

/* Like engine_set_eager(), which the library does not export: drafting then depends on no measured
 * time. */
void
draft_in_each_step(llmc_engine *e)
{
	e->e->drafter.eager = true;
}
