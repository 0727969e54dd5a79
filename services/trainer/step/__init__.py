"""One optimizer step and what it needs: credit, critic, reference, diagnostics."""
