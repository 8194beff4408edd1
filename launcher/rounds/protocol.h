/* The version of the protocol between agents: greeting, frames, messages and the record of a
 * witness. The version grows with each change of any of them. unit_message and unit_secure then
 * write the corpus of fuzzing anew (DTRUN_WRITE_SEEDS=1). */
#ifndef DT_LAUNCHER_ROUNDS_PROTOCOL_H
#define DT_LAUNCHER_ROUNDS_PROTOCOL_H

enum { PROTOCOL_VERSION = 15 };

#endif
