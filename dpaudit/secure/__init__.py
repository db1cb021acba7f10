"""Two servers that do not collude add up owners' integers, with noise that neither knows (paper 001): threat model.

This is research code that nobody outside has audited.

Trust. Servers and owners are semi-honest: they keep to the protocol, and try to learn what they can from what they
see. H1 and H2 do not talk to each other beyond it. Nothing is promised against one that departs from it: a server can
move a sum as it likes or stop it, and an owner can submit any integers of the ring, as nobody checks their norm. That
can spoil a step (poisoning); the owner's own examples are then not protected as accounted, the others' are.

What each learns. A server, and all owners but one with it: the opened sums, who took part in which step, and when; of
the remaining owner what the noisy sums tell. Two servers that collude learn every owner's integers. An owner learns
the opened sums and who is in them. Who listens on the way, where there are certificates, learns who speaks with whom,
when, and how much.

What the noise protects. Each example of an owner, beside any that could be in its place, in every opening that was
begun, whether or not it came to a result (:mod:`budget`).

What a copy of the disk gives away. The opened sums, which all owners know, and what was made ahead. H1's blocks, with
a record of what the servers say when these are opened, tell H1's share of that step's sum. The blocks of both servers
tell the noise of the steps to come. So a copy of a server's folder in the hands of the other is collusion. Blocks say
nothing of steps that were opened before they were made; that an opened one is gone from the disk cannot be promised.
Files are for their owner alone; a disk is best encrypted, and ``--ahead 0`` keeps no block at all.

States that are put back. Two openings of one block give a share away, so a server that has forgotten a block that the
other saw it spend is refused (:mod:`offline`). The one way forward is to start it once with ``--rejoin``: both drop
all that was made ahead, and it has the results that it lacks from the other. That is also how an empty server takes
the place of one that was lost. If both are put back to earlier states, neither can tell: one of the two is to be
started with ``--rejoin`` before anything is opened, and the openings that both have forgotten are still spent.

Keys. With a server's key one can take its place. The authority's key can make an owner out of nobody, not a server
(:mod:`keys`). Without certificates everybody is believed and nothing is encrypted: for one machine only.
"""
