"""Commands around a deployment: new apps, their check, certificates, signatures and service files."""
