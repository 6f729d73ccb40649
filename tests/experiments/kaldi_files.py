"""Small files in Kaldi's formats, written apart from the readers under test."""

import struct

import kaldiio

# for each entry of the topology its phones, and for each state where its transitions go
ENTRIES = [([1, 2], [[0, 1], [1, 2], []]), ([3], [[0, 1, 2], [], []])]
# phone, state, state id forwards, state id of the self-loop
TUPLES = [(1, 0, 0, 4), (1, 1, 1, 5), (2, 0, 2, 2), (2, 1, 1, 5), (3, 0, 3, 6)]
# the state ids of transition ids 1, 2, ..., without and with ones of their own for self-loops
PDFS = [-1, 0, 0, 1, 1, 2, 2, 1, 1, 3, 3, 3]
PDFS_APART = [-1, 4, 0, 5, 1, 2, 2, 5, 1, 6, 3, 3]


def text_model(loops_apart=False):
    lines = ["<TransitionModel>", "<Topology>"]
    for phones, states in ENTRIES:
        lines += ["<TopologyEntry>", "<ForPhones>", " ".join(map(str, phones)), "</ForPhones>"]
        for number, targets in enumerate(states):
            one = f"<ForwardPdfClass> {number} <SelfLoopPdfClass> {number}"
            kind = (one if loops_apart else f"<PdfClass> {number}") if targets else ""
            arcs = " ".join(f"<Transition> {target} 0.5" for target in targets)
            lines.append(f"<State> {number} {kind} {arcs} </State>")
        lines.append("</TopologyEntry>")
    name = "Tuples" if loops_apart else "Triples"
    lines += ["</Topology>", f"<{name}> {len(TUPLES)}"]
    lines += [" ".join(map(str, t[: 4 if loops_apart else 3])) for t in TUPLES]
    lines += [f"</{name}>", "<LogProbs> [ 0 -0.7 ]", "</LogProbs>", "</TransitionModel>", ""]
    return "\n".join(lines).encode()


def binary_model(loops_apart=False):
    def number(*values):
        return b"".join(b"\4" + struct.pack("<i", v) for v in values)

    def vector(values):
        return number(len(values)) + struct.pack(f"<{len(values)}i", *values)

    entry_of = {phone: i for i, (phones, _) in enumerate(ENTRIES) for phone in phones}
    parts = [b"\0B<TransitionModel> <Topology> ", vector([1, 2, 3])]
    parts.append(vector([-1, *(entry_of[phone] for phone in (1, 2, 3))]))
    parts.append(number(*([-1] if loops_apart else []), len(ENTRIES)))
    for _, states in ENTRIES:
        parts.append(number(len(states)))
        for i, targets in enumerate(states):
            parts.append(number(*([i, i] if loops_apart else [i]), len(targets)))
            parts += [number(target) + b"\4" + struct.pack("<f", 0.5) for target in targets]
    name = b"Tuples> " if loops_apart else b"Triples> "
    parts += [b"</Topology> <", name, number(len(TUPLES))]
    parts += [number(*t[: 4 if loops_apart else 3]) for t in TUPLES]
    parts += [b"</", name, b"<LogProbs> FV "]
    return b"".join(parts)


def write_features(folder, matrices, **options):
    """``feats.ark`` and ``feats.scp`` in a folder, the second with relative paths."""
    folder.mkdir(parents=True, exist_ok=True)
    scp = folder / "feats.scp"
    kaldiio.save_ark(str(folder / "feats.ark"), matrices, scp=str(scp), **options)
    scp.write_text(scp.read_text().replace(f"{folder}/", ""))
    return scp


def write_states(folder, states):
    """``pdf.ark``, as ``ali-to-pdf`` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    kaldiio.save_ark(str(folder / "pdf.ark"), states)
